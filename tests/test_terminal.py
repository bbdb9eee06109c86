"""Tables at any width: nothing is cut, and no word that fits a line is broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from longspan.terminal import Column, Sheet
from longspan_eval.cell import Cell
from longspan_eval.cli.results import print_markdown
from longspan_eval.figure import Figure
from longspan_eval.report.markdown import table_of
from longspan_eval.report.terminal import Beside

COLUMNS = [Column("row"), Column("what it is"), Column("score", "right")]
ROWS = [
    ("dca:chunk_size=384", "every key, seen at a distance that is folded into the window", "98.0 (89.5-99.6) n=50"),
    ("stock", "", "·"),
    ("esa", "an address: github.com/someone/a-repository-with-a-long-name/and/a/path", "1,234,567"),
]
MARKDOWN = """# A model: passkey

Window 512 tokens. A cell is the mean score in percent.

| | 512 | 1,024 |
| --- | ---: | ---: |
| `stock` | 98.0 (89.5-99.6) n=50 | 0.0 (0.0-7.1) n=50 |
| `longheads:score=bounds` | 98.0 (89.5-99.6) n=50 | **98.0 (89.5-99.6) n=50** |

- a note
"""


def shown(what, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_markdown(console, what) if isinstance(what, str) else console.print(what)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 120, 300])
@pytest.mark.parametrize("headed", [True, False])
def test_no_width_loses_anything(width, headed):
    text = shown(Sheet(COLUMNS, ROWS, title="what was found", headed=headed), width)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(cell for row in ROWS for cell in row).split():
        if len(word) <= width - 4:
            assert word in text.split(), word
        else:
            assert word in "".join(text.split()), word
    assert "…" not in text


def test_columns_stand_where_they_fit_and_blocks_where_they_do_not():
    sheet = Sheet(COLUMNS, ROWS[:2])
    assert sheet.fits(80) and not sheet.fits(40)
    wide = [line for line in shown(sheet, 80).splitlines() if line.strip()]
    assert wide[0].split() == ["row", "what", "it", "is", "score"] and "98.0 (89.5-99.6) n=50" in wide[2]
    narrow = shown(sheet, 40).splitlines()
    assert narrow[0] == "dca:chunk_size=384" and any("98.0 (89.5-99.6) n=50" in line for line in narrow)
    assert [line.split() for line in narrow[-2:]] == [["stock"], ["score", "·"]]


def test_a_block_that_a_number_names_says_what_number():
    columns = [Column("layer", "right"), *(Column(f"a long heading {n}", "right") for n in range(3))]
    assert shown(Sheet(columns, [("7", "0.5", "0.6", "0.7")]), 30).splitlines()[0] == "layer 7"


def test_a_cell_is_never_read_as_markup():
    assert "[bold]x[/]" in shown(Sheet([Column("a"), Column("b")], [("[bold]x[/]", Text("[/]"))]), 40)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_markdown(width):
    text = shown(MARKDOWN, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("98.0 (89.5-99.6) n=50") == 3 and "0.0 (0.0-7.1) n=50" in text
    assert "longheads:score=bounds" in text and "`" not in text and "**" not in text and "a note" in text


def test_a_cell_of_markdown_may_have_the_sign_that_ends_one():
    text = shown(table_of(["", "a | b?", "n"], [["dca", "c|d|", "7"]]), 80).splitlines()
    assert text[1].split() == ["a", "|", "b?", "n"] and text[3].split() == ["dca", "c|d|", "7"]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_both_halves_of_the_demonstration(width):
    rows = ["stock", "longheads:score=bounds"]
    cells = [Cell(row, head) for row in rows for head in ("1x", "2x", "16x")]
    found, perplexity = Figure(0.6, "count", 5, (0.0, 1.0)), Figure(2100.0, "perplexity", 5)
    halves = ([(cell, figure) for cell in cells] for figure in (found, perplexity))
    text = shown(Beside(list(zip(("found", "perplexity"), map(list, halves), strict=True))), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("3/5") == 6 and text.count("2.1k") == 6 and "…" not in text
    assert all(row in text.split() for row in rows)
