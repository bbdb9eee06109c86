"""The papers' own figures: each beside its table, whole, and none that is damaged."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.published import FILE, published


def test_published_figures_stand_beside_tables():
    every = json.loads(FILE.read_text())
    for paper, tables in every.items():
        numbers = {number for table in PAPERS[paper].tables for number in table.numbers}
        beside = [one.number for number in numbers for one in published(paper, number)]
        assert sorted(beside) == sorted(tables)  # each of them once


def test_what_is_damaged_is_not_published():
    unread = {(paper, one) for paper, tables in json.loads(FILE.read_text()).items() for one in tables
              if published(paper, one)[0].unread}  # fmt: skip
    assert {one for paper, one in unread if paper == "esa"} == {f"Table {n}" for n in (1, 2, 3, 4)}
    assert unread - {("esa", f"Table {n}") for n in (1, 2, 3, 4)} == {("dca", "Figure 6")}  # a picture without words
    (ninth,) = published("esa", "Table 9")
    assert dict((row[0], row[1]) for row in ninth.rows)["Qasper"] is None
    (seventh,) = published("esa", "Table 7")
    assert [row[0] for row in seventh.rows if None not in row] == ["3"]


@pytest.mark.parametrize(
    ("paper", "number", "first"),
    [("longheads", "Table 2", 2), ("longheads", "Table 8", 2), ("dca", "Table 3", 3), ("dca", "Table 4", 3)],
)
def test_printed_means_are_those_of_their_rows_or_said_not_to_be(paper, number, first):
    for one in published(paper, number):
        for row in one.rows:
            values, printed = row[first:-1], row[-1]
            if printed is not None and abs(fmean(values) - printed) > 0.06:
                assert f"{fmean(values):.2f}" in one.remark, row


def test_rows_that_the_papers_reran_are_not_called_fine_tuned():
    (first,) = published("dca", "Table 1")
    rows = {row[0]: row[1:] for row in first.rows}
    assert rows["Llama2-NTK-Yarn 7B"] == ("Training-free", 7.87, 8.06, 9.82, 11.74, 41.57)
    assert rows["ChunkLlama3 8B"][3:] == (8.61, 8.62, 8.95) and "32k, 64k, 96k there" in first.remark
    for number, name in (("Table 3", "ChunkLlama3 8B"), ("Table 4", "ChunkLlama3-Instruct 8B")):
        assert name in {row[0] for row in published("dca", number)[0].rows}
