"""What a reader gets: a table in which no cell is blank, strict JSON, pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from longspan_eval.measure import outcomes
from longspan_eval.pages import Pages, cell_text, short_length
from longspan_eval.workers import error_sample
from studies import DEEP, MADE, READ, SUBJECT, answer, study

STUDY = study((MADE, DEEP), ("dca:chunk_size=100", "yarn"), (512, 1000, 2048), depths=3, samples=2)


@pytest.fixture
def pages(tmp_path):
    return Pages(tmp_path, STUDY, SUBJECT, STUDY.plan(SUBJECT), "longspan eval made deep", "cpu", 2)


@pytest.fixture
def grid(pages):
    """One of every kind: whole, unfinished, not begun, out of memory, skipped, broken."""
    cells = {(c.task.name, c.row.label, c.length): c for c in pages.cells}
    samples = {ask.key: answer(ask) for cell in pages.cells for ask in cell.asks}
    for ask in cells["deep", "yarn", 2048].asks[1:]:
        del samples[ask.key]
    for ask in cells["deep", "stock", 2048].asks:
        del samples[ask.key]
    for place, error in {
        ("made", "yarn", 512): "out of memory",
        ("made", "yarn", 1000): "skipped: a prompt takes about 2.0 hours",
        ("deep", "dca:chunk_size=100", 512): "DCA: a rule is broken",
    }.items():
        ask = cells[place].asks[0]
        samples[ask.key] = error_sample(ask, error)
    return outcomes(STUDY, pages.cells, samples)


def test_no_cell_of_a_table_is_blank(pages, grid):
    pages.write(grid)
    text = (pages.out / "summary.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 6 and all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
    by = {(n // 3, row[0].strip(" `")): [cell.strip() for cell in row[1:]] for n, row in enumerate(rows)}
    assert by[0, "yarn"][:2] == ["out of memory", "skipped"] and by[1, "dca:chunk_size=100"][0] == "error"
    assert by[1, "stock"][2] == "·" and by[1, "yarn"][2].endswith("n=1 …") and by[1, "yarn"][1].endswith("n=6")
    for words in (
        "Window 512 tokens, 1,000 parameters in float32, weights `aaaaaaaaaaaa`",
        "| | 512 | 1,000 | 2,048 |",
        "- deep, `dca:chunk_size=100` at 512 tokens: DCA: a rule is broken",
        "- made, `yarn` at 1,000 tokens: skipped: a prompt takes about 2.0 hours",
        "- 2 of 18 cells are unfinished",
        "- No depth can be asked for in made.",
        "`longspan eval made deep`",
        "torch",
    ):
        assert words in text


def test_a_cell_in_words(grid):
    cell = replace(grid["made", "stock", 512], score=0.625, interval=(0.31, 0.86), n=2, planned=2)
    assert cell_text(cell) == "62.5 (31.0-86.0) n=2"
    assert cell_text(replace(cell, planned=3)) == "62.5 (31.0-86.0) n=2 …"


def test_the_json_says_what_was_measured_and_how(pages, grid):
    pages.write(grid)
    body = json.loads((pages.out / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert body["model"]["sha256"] == "a" * 64 and body["model"]["tokenizer_sha256"] == "b" * 64
    assert {"torch", "transformers", "longspan", "python"} <= body["environment"].keys()
    assert (body["environment"]["threads"], body["environment"]["device"], body["first_seed"]) == (2, "cpu", 0)
    assert body["tasks"]["deep"]["depths"] == [0, 0.5, 1] and body["tasks"]["made"]["depths"] is None
    assert body["tasks"]["made"]["version"] == 1 and body["tasks"]["made"]["data"] is None
    assert body["rows"]["dca:chunk_size=100"]["1000"]["chunk_size"] == 100 and body["rows"]["stock"]["512"] == {}
    assert len(body["cells"]) == 18
    cells = {(c["task"], c["row"], c["length"]): c for c in body["cells"]}
    assert cells["made", "yarn", 512]["error"] == "out of memory" and cells["made", "yarn", 512]["score"] is None
    one = cells["deep", "yarn", 512]
    assert (one["n"], one["planned"], len(one["depths"]), one["multiple"]) == (6, 6, 3, 1.0) and len(
        one["interval"]
    ) == 2


def test_pages_are_replaced_whole(pages, grid, monkeypatch):
    pages.write(grid)
    before = (pages.out / "results.json").read_bytes()

    def dies(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("longspan.files.os.replace", dies)
        with pytest.raises(KeyboardInterrupt):
            pages.write({})
    assert (pages.out / "results.json").read_bytes() == before
    assert sorted(path.name for path in pages.out.iterdir()) == ["results.json", "summary.md"]


def test_records_are_counted(tmp_path):
    (tmp_path / "read.jsonl").write_text('{"answer": 1}\n{"answer": 2}\n')
    made = study((READ,), data_dir=tmp_path)
    pages = Pages(tmp_path, made, SUBJECT, made.plan(SUBJECT), "", "cpu", 1)
    pages.write(outcomes(made, pages.cells, {}))
    task = json.loads((tmp_path / "results.json").read_text())["tasks"]["read"]
    assert (task["data"], task["records"]) == ("read.jsonl", 2)


def test_pictures(pages, grid):
    pytest.importorskip("matplotlib")
    made = pages.draw(grid)
    assert [path.name for path in made] == ["scores.png", "heatmap-deep.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000 for path in made)


def test_every_tile_without_a_score_says_why(pages, grid, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    words = []
    text = Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, s, **more: (words.append(s), text(self, x, y, s, **more))[1])
    pages.draw(grid)
    overview, deep = words[:18], words[18:]
    assert {"oom", "skip", "error", "·"} <= set(overview) and sum(word.isdigit() for word in overview) == 14
    assert sorted(deep) == ["error", "·", "·", "·"]  # a whole cell; one not begun; two depths of an unfinished one


@pytest.mark.parametrize(("length", "text"), [(16384, "16k"), (1000, "1000"), (512, "512"), (1024, "1k")])
def test_short_lengths(length, text):
    assert short_length(length) == text
