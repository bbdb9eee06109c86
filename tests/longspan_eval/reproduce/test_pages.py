"""Figures as they are written, notes, and what is said of the papers' own."""

from __future__ import annotations

import math

import pytest

from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.charts import draw
from longspan_eval.reproduce.figures import (
    ANSWERS,
    FOUND,
    PERPLEXITY,
    Figure,
    against,
    found_where,
    mean_of,
    median_of,
    written_bytes,
)
from longspan_eval.reproduce.pages import matrix, notes
from longspan_eval.reproduce.published import _everything, published
from longspan_eval.reproduce.run import Outcome
from longspan_eval.reproduce.table import Cell
from longspan_eval.results import Sample


def sample(correct=0.0, loss=math.nan, scored=0, prediction="", **figures):
    return Sample("a", 1, 0, None, "", prediction, correct, loss, scored, figures=figures)


def test_found():
    figure = FOUND.reduce([sample(1.0), sample(0.0), sample(0.5)])
    assert (figure.value, figure.n) == (0.5, 3) and figure.interval[0] < 0.5 < figure.interval[1]
    assert math.isnan(FOUND.reduce([]).value)


def test_found_where():
    samples = [sample(1.0, split=0.0), sample(0.0, split=1.0), sample(0.0, split=0.0), sample(1.0, split=math.nan)]
    assert found_where("split", 0.0).reduce(samples).value == 0.5
    assert found_where("split", 1.0).reduce(samples).n == 1


def test_perplexity():
    figure = PERPLEXITY.reduce([sample(loss=1.0, scored=10), sample(loss=4.0, scored=10)])
    assert figure.value == pytest.approx(math.exp(2.5)) and figure.n == 2
    # Losses of 1 and 4 have a deviation of 3 / √2, their mean an error of 1.5.
    assert figure.interval == pytest.approx((math.exp(2.5 - 1.96 * 1.5), math.exp(2.5 + 1.96 * 1.5)))
    assert PERPLEXITY.reduce([sample(loss=1.0, scored=10)]).shown() == "2.72 n=1"
    assert math.isnan(PERPLEXITY.reduce([]).value)


def test_means_and_medians_leave_out_what_is_not_known():
    samples = [sample(hit=1.0), sample(hit=math.nan), sample(), sample(hit=0.25), sample(hit=0.25)]
    assert mean_of("hit", "share").reduce(samples).value == 0.5
    assert mean_of("hit", "share").reduce(samples).n == 3
    assert median_of("hit", "share").reduce(samples).value == 0.25
    assert math.isnan(mean_of("other", "share").reduce(samples).value)


def test_means_of_shares_have_intervals():
    # 1 and 0.5 twice: a mean of 2/3, a deviation of √(1/12), an error of 1/6.
    figure = mean_of("hit", "share").reduce([sample(hit=1.0), sample(hit=0.5), sample(hit=0.5)])
    assert figure.interval == pytest.approx((2 / 3 - 1.96 / 6, 2 / 3 + 1.96 / 6))
    assert figure.shown() == "67% (34-99) n=3"
    assert mean_of("hit", "share").reduce([sample(hit=1.0), sample(hit=0.0)]).interval == (0.0, 1.0)
    assert mean_of("gini", "number").reduce([sample(gini=0.25), sample(gini=0.25)]).shown() == "0.25 (0.25-0.25) n=2"
    assert mean_of("hit", "share").reduce([sample(hit=1.0)]).shown() == "100.0% n=1"
    assert median_of("hit", "share").reduce([sample(hit=1.0), sample(hit=0.5)]).interval is None


def timed(task, seed, seconds):
    return Sample("a", 1, seed, None, "", task=task, figures={"prefill": seconds})


def test_ratios_are_within_a_round():
    # The second round was disturbed, both rows of it.
    samples = [timed("own", n, seconds) for n, seconds in enumerate((2.0, 60.0, 3.0))]
    samples += [timed("base", n, seconds) for n, seconds in enumerate((1.0, 30.0, 1.0))]
    figure = against("prefill", "base").reduce(samples)
    assert figure.value == 2.0 and figure.shown() == "2" and figure.n == 3
    assert math.isnan(against("prefill", "base").reduce(samples[:3]).value)
    assert against("prefill", "base").reduce(samples[:-1]).n == 2


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (Figure(0.5, "share", 4, (0.15, 0.85)), "50% (15-85) n=4"),
        (Figure(0.0625, "share"), "6.25%"),
        (Figure(0.394, "share"), "39.4%"),
        (Figure(0.394, "share", 3, (0.3, 0.5)), "39% (30-50) n=3"),
        (Figure(12.345, "perplexity", 1), "12.35 n=1"),
        (Figure(227.4, "perplexity", 2, (200.0, 250.0)), "227 (200-250) n=2"),
        (Figure(math.inf, "perplexity", 1), "inf n=1"),
        (Figure(0.0123, "seconds", 2), "12.3 ms"),
        (Figure(4.14, "seconds", 2), "4.14 s"),
        (Figure(42.3e9, "bytes", 2), "42.3 GB"),
        (Figure(0.295, "number", 2), "0.295"),
        (Figure(1535.0, "number"), "1,535"),
        (Figure(math.nan, "number", 2), "-"),
    ],
)
def test_shown(figure, shown):
    assert figure.shown() == shown


def test_unfinished_cells_say_so():
    assert Figure(0.5, "share", 1, (0.0, 1.0)).shown(3).endswith(" …") and Figure(math.nan, "share").shown(3) == "·"


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (44.48e9, "44.5 GB"), (8.9e6, "8.9 MB"), (1500, "1.5 kB")])
def test_bytes(size, text):
    assert written_bytes(size) == text


def test_answers_stay_in_their_cell():
    assert ANSWERS.reduce([sample(prediction="a | b\nc")]).shown() == "a \\| b c"
    assert ANSWERS.reduce([sample(prediction=" ")]).shown() == "(nothing)"


def outcomes():
    figure = Figure(0.5, "share", 4, (0.15, 0.85))
    return [
        Outcome(Cell("a", "x", FOUND), figure, 0, None),
        Outcome(Cell("a", "y", FOUND), None, 2, "20 tokens are too few"),
        Outcome(Cell("b", "x", missing="put it there", brief="needs `f.jsonl`"), None, 0, "put it there"),
        Outcome(Cell("c", "x", FOUND), Figure(1.0, "share", 1, (0.2, 1.0)), 2, None),
    ]


def test_matrix_and_notes():
    lines = matrix(outcomes()).splitlines()
    assert lines[0] == "| | x | y |" and lines[2] == "| a | 50% (15-85) n=4 | error |"
    assert lines[3] == "| b | needs `f.jsonl` |  |" and lines[4].startswith("| c | 100% (20-100) n=1 … |")
    said = notes(outcomes())
    assert said[0] == "- a (y): 20 tokens are too few." and said[1] == "- b (x): put it there."
    assert said[2].startswith("- 1 of 4 cells are unfinished")


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(outcomes(), "made", tmp_path / "a.png") and (tmp_path / "a.png").stat().st_size > 5000
    assert not draw(outcomes()[1:3], "made", tmp_path / "b.png") and not (tmp_path / "b.png").exists()


def test_published_figures_have_sources_and_tables():
    for paper, tables in _everything().items():
        names = {table.name for table in PAPERS[paper].tables}
        assert set(tables) <= names
        for found in tables.values():
            assert found and all(all(part.strip() for part in one) for one in found)
    memory = [one.figure for one in published("longheads", "efficiency")]
    assert "4.14 s" in memory and any("42.3 GB" in one and "44.48 GB" in one for one in memory)
    assert published("longheads", "perplexity") == []
