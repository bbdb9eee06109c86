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
    assert {row[0]: row[1] for row in ninth.rows}["Qasper"] is None
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


def rows_of(paper, number, part=0):
    """The figures of each row, by its first place."""
    return {row[0]: row[1:] for row in published(paper, number)[part].rows}


def test_what_is_printed_twice_agrees():
    short, long = rows_of("dca", "Table 1"), rows_of("dca", "Table 2")
    for name, figures in short.items():
        again = long.get(name.replace("-16k", "").replace("-32k", ""))
        if again is not None and not name.startswith("ChunkLlama3"):  # see the remark
            assert (figures[1], *figures[4:]) == (again[2], *again[3:5]), name
    few_shot = rows_of("dca", "Table 3")
    for name, examples, *figures in published("dca", "Table 5")[0].rows:
        assert examples != "Example Random" or tuple(figures) == few_shot[name][3:6]
    ablations, longbench = rows_of("longheads", "Table 4"), rows_of("longheads", "Table 2")
    whole = ablations["LongHeads (l = 256, K = 16, top K)"][0]
    assert whole == longbench["LongHeads"][-1]
    lower = [round(whole - ablations[name][0], 2) for name in ("Fix Head", "Fix Layer", "Fix Head & Layer")]
    assert lower == [0.68, 1.36, 1.42]
    assert tuple(row[-1] for row in rows_of("esa", "Table 7").values()) == rows_of("esa", "Table 5")["NeedleBench"]
    assert rows_of("esa", "Table 8")["Average"] == rows_of("esa", "Table 6")["LongBench scores"]


def test_esas_means_are_those_of_their_columns():
    for number, column in (("Table 8", 0), ("Table 8", 1), ("Table 9", 1)):
        figures = [row[column] for row in rows_of("esa", number).values()]
        assert len(figures) == 17 and fmean(figures[:-1]) == pytest.approx(figures[-1], abs=0.05)
    lengths = rows_of("esa", "Table 7")["3"]
    assert fmean(lengths[:-1]) == pytest.approx(lengths[-1], abs=0.01)
