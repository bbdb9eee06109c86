"""A table to read at once: nothing blank, every cell with its number of prompts and interval."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from longspan_eval import tables
from longspan_eval.results import wilson
from longspan_eval.summary import Summary

WHOLE = Summary(
    "dca", 4.0, 2048, "prose", 200, 200, 196, wilson(196, 200), 26.0, 120, 1.013, (1.009, 1.017), 25.9, 0.3, None
)
GRID = {
    ("dca", 4.0, "prose"): WHOLE,
    ("dca", 8.0, "prose"): replace(WHOLE, multiple=8.0, planned=400),
    ("stock", 4.0, "prose"): replace(WHOLE, row="stock", error="out of memory"),
    ("stock", 8.0, "prose"): replace(WHOLE, row="stock", n=0, found=0, ratio=math.nan),
    ("pi", 4.0, "prose"): replace(WHOLE, row="pi", error="PI: some rule"),
    ("pi", 8.0, "prose"): replace(WHOLE, row="pi", ratio=26.0),
}
ROWS, MULTIPLES = ["stock", "pi", "dca"], [4.0, 8.0]


def lines(text):
    return {line.split("`")[1]: [cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines()[2:]}


def test_found():
    made = lines(tables.found_table(GRID, ROWS, MULTIPLES, "prose"))
    assert made["dca"] == ["196/200 (95-99)", "196/200 (95-99) …"]
    assert made["stock"] == ["out of memory", "·"]
    assert made["pi"][0] == "error"


def test_perplexity():
    made = lines(tables.perplexity_table(GRID, ROWS, MULTIPLES, "prose"))
    assert made["dca"] == ["26.2 (+1.3% ± 0.4)", "26.2 (+1.3% ± 0.4) …"]
    assert made["stock"] == ["out of memory", "·"]
    assert made["pi"] == ["error", "673 (x26.0)"]


def test_notes_name_errors_and_what_is_unfinished():
    text = "\n".join(tables.notes(GRID))
    assert "`pi` at 4x over prose: PI: some rule" in text and "2 of 6 cells are unfinished" in text
    assert tables.notes({("dca", 4.0, "prose"): WHOLE}) == []


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (0.991, (0.987, 0.995), "-0.9% ± 0.4"),
        (1.5, (0.0, math.inf), "+50.0%"),
        (2.0, (1.9, 2.1), "x2.0"),
        (math.inf, (1, math.inf), "x>1M"),
    ],
)
def test_change(ratio, interval, text):
    assert tables.change(replace(WHOLE, ratio=ratio, ratio_interval=interval)) == text


@pytest.mark.parametrize(("value", "text"), [(1.0004, "1.000"), (1.267, "1.267"), (7.1, "7.10"), (26.24, "26.2")])
def test_number(value, text):
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("found", "n", "words"), [(190, 200, "**met**: 190/200 = 95.0%"), (189, 200, "**missed**"), (0, 0, "not measured")]
)
def test_verdict(found, n, words):
    assert tables.verdict(found, n, 0.95).startswith(words)


@pytest.mark.parametrize("fillers", [["prose"], ["noise", "prose"]])
def test_the_picture_is_one(tmp_path, fillers):
    tables.picture(GRID, ROWS, MULTIPLES, fillers, "title", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
