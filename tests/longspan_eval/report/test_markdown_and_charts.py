"""Tables in Markdown, and pictures."""

from __future__ import annotations

import math

import pytest

from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.report import charts, markdown

NAN = math.nan
FIGURES = [
    (Cell("a", "x"), Figure(0.5, "share", 4, (0.15, 0.85))),
    (Cell("a", "y"), Figure(NAN, "share", reason="20 tokens are too few")),
    (Cell("b", "x"), Figure(NAN, "text", reason="put it there", brief="needs `f.jsonl`")),
    (Cell("c", "x"), Figure(1.0, "share", 1, (0.2, 1.0), measured=1, planned=2)),
]


def test_a_table():
    lines = markdown.table(FIGURES).splitlines()
    assert lines[0] == "| | x | y |" and lines[2] == "| a | 50% (15-85) n=4 | error |"
    assert lines[3] == "| b | needs `f.jsonl` |  |" and lines[4].startswith("| c | 100% (20-100) n=1 … |")
    coded = markdown.table(FIGURES, code=True).splitlines()
    assert [line.split("|")[1].strip() for line in coded[2:]] == ["`a`", "`b`", "`c`"]


def test_a_table_of_texts():
    assert markdown.table_of(["", "x"], [["a", ""]]) == "| | x |\n| --- | ---: |\n| a |  |"
    assert markdown.table_of(["model", "x"], []) == "| model | x |\n| --- | ---: |"


def test_no_text_ends_its_cell_or_line():
    table = markdown.table_of(["", "a or b,\na | b?"], [["c|d", "|e"]])
    assert table == "| | a or b, a \\| b? |\n| --- | ---: |\n| c\\|d | \\|e |"


def test_what_is_unfinished():
    (line,) = markdown.unfinished(FIGURES)
    assert line.startswith("- 1 of 4 cells are unfinished") and markdown.unfinished(FIGURES[:3]) == []


def is_picture(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 4000


def test_lines(tmp_path):
    assert charts.lines(FIGURES, "a title", tmp_path / "a.png") and is_picture(tmp_path / "a.png")
    assert not charts.lines(FIGURES[1:3], "a title", tmp_path / "b.png") and not (tmp_path / "b.png").exists()


def test_tiles(tmp_path):
    panels = [charts.panel(name, FIGURES) for name in ("one", "two", "three", "four")]
    charts.tiles(panels, "a title", tmp_path / "a.png", x="across", y="down")
    assert is_picture(tmp_path / "a.png")
    assert panels[0].texts == [["50", "error"], ["needs `f.jsonl`", ""], ["100", ""]]
    assert panels[0].shades[0][0] == 0.5 and math.isnan(panels[0].shades[0][1])


def test_a_perplexity_has_the_colour_of_the_lowest_over_it():
    values = (26.14, 165.4, 3561.0, 2.1e7, NAN)
    figures = [(Cell("a", str(n)), Figure(value, "perplexity", 1, planned=2)) for n, value in enumerate(values)]
    panel = charts.panel("perplexity", figures)
    assert panel.texts == [["26.1", "165", "3561", "2e+07", "·"]]
    assert panel.shades[0][:2] == [1, pytest.approx(26.14 / 165.4)] and math.isnan(panel.shades[0][4])


@pytest.mark.parametrize(("value", "shade", "text"), [(0.9, 1, "-10.0%"), (1.25, 0.75, "+25.0%"), (9.0, 0, "x9.0")])
def test_a_ratio_is_good_up_to_one(value, shade, text):
    panel = charts.panel("ratio", [(Cell("a", "x"), Figure(value, "ratio", 2, (0.0, math.inf), baseline=9.0))])
    assert (panel.shades, panel.texts) == ([[shade]], [[text]])
