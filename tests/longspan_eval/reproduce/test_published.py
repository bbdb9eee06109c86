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
    tables = {
        (paper, one): published(paper, one)[0] for paper, own in json.loads(FILE.read_text()).items() for one in own
    }
    assert {place for place, one in tables.items() if one.unread} == {("esa", f"Table {n}") for n in (1, 2, 3, 4)}
    assert {place for place, one in tables.items() if one.picture} == {("dca", "Figure 6")}  # and no word of it
    assert {place for place, one in tables.items() if not one.rows} == {
        place for place, one in tables.items() if one.unread or one.picture
    }
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


@pytest.mark.parametrize(
    ("paper", "number", "said"),
    [
        ("longheads", "Table 2", "4.67 above LM-Infinite and 2.92 above Landmark"),
        ("dca", "Table 1", "0.02 more at 32k"),
        ("dca", "Table 2", "0.56 more at 96k"),
        ("dca", "Table 3", "quoted there from Xiong et al. (2023)"),
        ("dca", "Table 3", "more than 8.0 points"),
        ("dca", "Table 4", "Llama2 Long-Chat is quoted there from Xiong et al. (2023)"),
        ("dca", "Table 4", "94% of what gpt-3.5-turbo-16k has"),
        ("dca", "Table 4", "1.75 points above Vicuna"),
        ("esa", "Table 1", "at most 1 percentage point"),
        ("esa", "Table 6", "the difference 0.39, which does not agree"),
    ],
)
def test_what_the_text_says_stands_beside_its_table(paper, number, said):
    assert said in published(paper, number)[0].remark


def test_differences_of_the_text_are_those_of_the_tables():
    def of(number, name, place):
        (row,) = (one for one in published("dca", number)[0].rows if one[0] == name)
        return [value for value in row if isinstance(value, float)][place]

    assert round(of("Table 1", "ChunkLlama2 7B", 3) - of("Table 1", "ChunkLlama2 7B", 0), 2) == 0.02
    assert round(of("Table 2", "ChunkLlama2 70B", 3) - of("Table 2", "ChunkLlama2 70B", 0), 2) == 0.56
    assert of("Table 3", "ChunkLlama2 70B", -1) - of("Table 3", "Llama2 70B", -1) > 8.0
    mean = {one[0]: one[2:] for one in published("longheads", "Table 2")[0].rows}
    assert round(mean["LongHeads"][-1] - mean["LM-Infinite"][-1], 2) == 4.67
    assert round(mean["LongHeads"][-1] - mean["Landmark"][-1], 2) == 2.92
