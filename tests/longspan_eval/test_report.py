"""What a reader sees: a table that lines up and a heat map."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from longspan_eval.report import heat_map, short, table
from longspan_eval.results import Sample, cells


def samples():
    for method, good in (("stock", 0.0), ("dca", 1.0)):
        for length in (512, 1024):
            for depth in (0.0, 0.5, 1.0):
                yield Sample(method, length, 0, depth, "12345", "", good, 3.0, 10, 0.1)
    yield Sample("yarn", 512, 0, 0.0, "12345", error="out of memory")
    yield Sample("pi", 512, 0, 0.0, "12345", error="PI: some rule is broken")


def test_the_table_shows_counts_perplexity_and_what_failed():
    console = Console(file=io.StringIO(), width=80)
    rows = ["stock", "pi", "yarn", "dca"]
    console.print(table(cells(list(samples())), rows, [512, 1024], ["1x", "2x"], baseline=math.exp(3)))
    lines = console.file.getvalue().splitlines()
    by_method = {line.split()[0]: line.split()[1:] for line in lines if line.split() and line.split()[0] in rows}
    assert by_method["stock"] == ["0/3", "0/3", "20.1", "20.1"]
    assert by_method["dca"] == ["3/3", "3/3", "20.1", "20.1"]
    assert by_method["yarn"] == ["oom", "·", "oom", "·"]
    assert by_method["pi"] == ["n/a", "·", "n/a", "·"]


def test_an_unfinished_table_fits_a_narrow_terminal():
    console = Console(file=io.StringIO(), width=80)
    console.print(table({}, ["streaming-llm"], [1, 2, 4, 8, 16], ["1x", "2x", "4x", "8x", "16x"], baseline=math.nan))
    assert "streaming-llm" in console.file.getvalue() and "…" not in console.file.getvalue()


def test_the_heat_map_is_a_picture(tmp_path):
    path = tmp_path / "map.png"
    heat_map(list(samples()), ["stock", "dca", "yarn"], [512, 1024], ["1x", "2x"], "title", path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.81, "9.8"), (99.99, "100"), (134.4, "134"), (2148, "2.1k"), (123_456, "123k"), (1e7, ">1M"), (math.inf, ">1M")],
)
def test_short_numbers(value, text):
    assert short(value) == text
