"""Tables of lengths and depths: their means, their tiles, what of depths is in the results."""

from __future__ import annotations

import json
import math

import pytest

from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.report import PaperReport, panels_by_depth
from longspan_eval.reproduce.table import PaperPlan
from support.tables import table_of

K = 1024


def cells_of(paper, name, session):
    return {(cell.row, cell.column): cell for cell in table_of(paper, name).cells(session)}


def test_longheads_has_the_papers_mean_of_all_lengths_and_depths(at_4096, unbuilt):
    mean = cells_of("longheads", "figure-7", at_4096)["LongHeads", "all lengths and depths"]
    assert len(mean.measures) == 17 * 10 * 10
    found = [one.sample(correct=float(one.depth != 0)) for one in mean.measures]
    assert mean.figure_of(found).value == pytest.approx(0.9)


def test_passkeys_to_18k_and_at_middle_depths_stand_by_themselves(at_4096, unbuilt):
    cells = cells_of("dca", "figure-5", at_4096)
    assert list(dict.fromkeys(row for row, _ in cells)) == ["stock", "PI", "NTK", "dynamic NTK", "DCA"]
    near, middle = cells["DCA", f"to 4.5x ({18 * K:,}), all depths"], cells["NTK", "middle depths"]
    assert sorted({one.length for one in near.measures}) == [n * K for n in range(4, 19, 2)]
    assert len({one.depth for one in near.measures}) == 10
    assert sorted({round(9 * one.depth) for one in middle.measures}) == [3, 4, 5, 6]
    assert sorted({one.length for one in middle.measures}) == [n * K for n in range(4, 25, 2)]


@pytest.mark.parametrize(("limit", "said"), [(18, ""), (8, " of 3 of 8")])
def test_the_mean_to_18k_lacks_no_length_beyond_that(at_4096, unbuilt, limit, said):
    at_4096.max_length = limit * K
    assert ("DCA", f"to 4.5x ({18 * K:,}), all depths{said}") in cells_of("dca", "figure-5", at_4096)


@pytest.mark.parametrize(("paper", "name"), [("longheads", "figure-7"), ("dca", "figure-5"), ("dca", "figure-6")])
def test_depths_are_drawn_and_in_the_results(paper, name, at_window, tmp_path, unbuilt):
    session = at_window(512, scale="quick", max_length=512 * 6)
    plan = PaperPlan(table_of(paper, name), session)
    samples = {
        key: one.sample(correct=float(one.depth == 0))
        for keys, cell in zip(plan.keys, plan.cells, strict=True)
        for key, one in zip(keys, dict.fromkeys(cell.measures), strict=True)
    }
    (first, *others) = panels_by_depth(plan, samples)
    assert first.title == "stock" and INSIDE not in {one.title for one in others}
    assert first.rows[0] == "0%" and first.rows[-1] == "100%"
    assert {line[0] for line in first.shades[1:]} == {0.0} and first.shades[0][0] == 1.0
    assert len(first.columns) == len(first.shades[0]) and "mean" not in " ".join(first.columns)
    assert any(cell.missing for cell in plan.cells) is bool(first.across)
    report = PaperReport(tmp_path, PAPERS[paper], session, [plan], "longspan reproduce", "cpu")
    report.write(samples)
    assert report.draw(samples) == [f"{name}.png"] and (tmp_path / f"{name}.png").stat().st_size > 5_000
    told = json.loads((tmp_path / "results.json").read_text())["tables"][name]["cells"]
    (own,) = (cell for cell in told if (cell["row"], cell["column"].split()) == ("stock", first.columns[0].split()))
    assert [part["value"] for part in own["depths"]] == [1.0] + [0.0] * (len(first.rows) - 1)


def test_tiles_of_what_is_not_measured_yet_have_no_colour(at_window, unbuilt):
    plan = PaperPlan(table_of("dca", "figure-6"), at_window(512, scale="quick"))
    shades = {shade for one in panels_by_depth(plan, {}) for line in one.shades for shade in line}
    assert shades and all(map(math.isnan, shades))
