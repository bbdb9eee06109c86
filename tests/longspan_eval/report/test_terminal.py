"""What a terminal shows: a table that lines up, and bars."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from longspan_eval.cell import Cell
from longspan_eval.cli.results import print_markdown
from longspan_eval.figure import Figure, wilson
from longspan_eval.report.markdown import table_of
from longspan_eval.report.terminal import Beside, totals

ROWS = ("stock", "pi", "yarn", "dca")


def figures(unit, heads=("1x", "2x")):
    """Of stock and dca all figures, of the others what failed."""
    for row in ROWS:
        for n, head in enumerate(heads):
            right = float(row == "dca")
            if row in ("stock", "dca"):
                made = Figure(right if unit == "count" else math.exp(3), unit, 3, wilson(3 * right, 3), "", NAN, 3, 3)
            elif n:
                made = Figure(NAN, unit, planned=3)
            else:
                made = Figure(NAN, unit, reason="out of memory" if row == "yarn" else "PI: some rule is broken")
            yield Cell(row, head), made


NAN = math.nan
MARKDOWN = """# A model: passkey

Window 512 tokens. A cell is the mean score in percent.

| | 512 | 1,024 |
| --- | ---: | ---: |
| `stock` | 98.0 (89.5-99.6) n=50 | 0.0 (0.0-7.1) n=50 |
| `longheads:score=bounds` | 98.0 (89.5-99.6) n=50 | **98.0 (89.5-99.6) n=50** |

- a note
"""


def shown(what, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_markdown(console, what) if isinstance(what, str) else console.print(what)
    return console.file.getvalue()


def test_the_table_shows_counts_perplexity_and_what_failed():
    tables = Beside([("found", list(figures("count"))), ("perplexity", list(figures("perplexity")))])
    by_row = {line.split()[0]: line.split()[1:] for line in shown(tables).splitlines() if line.split()[:1] != []}
    assert by_row["stock"] == ["0/3", "0/3", "20.1", "20.1"]
    assert by_row["dca"] == ["3/3", "3/3", "20.1", "20.1"]
    assert by_row["yarn"] == ["oom", "·", "oom", "·"]
    assert by_row["pi"] == ["n/a", "·", "n/a", "·"]


def test_a_narrow_terminal_has_one_below_the_other():
    heads = ("1x", "2x", "4x", "8x", "16x")
    tables = Beside([("found", list(figures("count", heads))), ("perplexity", list(figures("perplexity", heads)))])
    text = shown(tables, 50)
    assert text.index("found") < text.index("perplexity") and text.count("stock") == 2 and "…" not in text


def test_totals_are_best_first_and_leave_out_what_failed():
    done = [pair for pair in figures("count") if pair[0].row in ("stock", "dca")]
    lines = shown(totals([*done, *figures("count", ("1x",))], "Beyond", "#.")).splitlines()
    assert [line.split()[0] for line in lines if line.split()] == ["Beyond", "dca", "stock"]
    assert "9 of 9 found" in lines[2] and "#" * 24 in lines[2] and "0 of 9 found" in lines[3]


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
