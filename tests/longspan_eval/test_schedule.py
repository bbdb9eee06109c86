"""What a plan has left, in which order, and what has come of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longspan_eval.cell import Cell
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import count, found, ratio
from longspan_eval.schedule import CellPlan
from longspan_eval.spec import parse_spec
from support.studies import MADE, SUBJECT, answer, plan_of, study


def prompts(n, spec="dca", length=512, first=0):
    return tuple(TaskPrompt(parse_spec(spec), length, first + seed, task=MADE) for seed in range(n))


def key(measure):
    return f"{measure.spec.label} {measure.length} {measure.seed}"


def cell(row, n, **more):
    return Cell(row, "x", found, prompts(n, row, **more))


def parts(plan, samples=(), **more):
    return [(part[0].measure.spec.label, len(part)) for part in plan.left(dict(samples), **more)]


def test_something_of_every_cell_comes_first_and_nothing_twice():
    plan = CellPlan([cell("dca", 60), cell("rerope", 8), Cell("again", "x", count, prompts(60))], key)
    assert parts(plan) == [("dca", 10), ("rerope", 8), ("dca", 40), ("dca", 10)]
    order = {"dca": 1, "again": 1, "rerope": 0}
    ranked = parts(plan, rank=lambda cell, part: (part, order[cell.row]))
    assert ranked[:2] == [("rerope", 8), ("dca", 10)]
    assert parts(plan, steps=()) == [("dca", 60), ("rerope", 8)]
    keys = [request.key for part in plan.left({}) for request in part]
    assert len(keys) == len(set(keys)) == 68


def test_what_is_done_is_left_out_and_an_error_ends_its_cell():
    plan = CellPlan([cell("dca", 12), cell("rerope", 3)], key)
    samples = {key(one): answer(one) for one in prompts(8, first=3)}
    assert [request.measure.seed for request in plan.left(samples)[0]] == [0, 1, 2]
    bad = prompts(1, "rerope")[0]
    samples[key(bad)] = bad.failed("DCA: a rule\nis broken")
    assert parts(plan, samples) == [("dca", 3), ("dca", 1)]
    assert parts(plan, samples, retry_errors=True) == [("dca", 3), ("rerope", 3), ("dca", 1)]
    assert plan.figure(1, samples).reason == "DCA: a rule is broken" and str(plan.figure(1, samples)) == "error"


def test_figures_say_what_is_missing():
    plan = CellPlan([cell("dca", 2), Cell("b", "x", missing="put it there", brief="needs a file")], key)
    samples = {key(one): replace(answer(one), correct=1.0) for one in prompts(1)}
    assert [str(figure) for _, figure in plan.figures({})] == ["·", "needs a file"]
    assert str(plan.figure(0, samples)) == "100% (21-100) n=1 …"


def test_a_cell_is_compared_with_another():
    base = prompts(2, "stock")
    plan = CellPlan([Cell("base", "x", count, base), Cell("dca", "x", ratio(9), prompts(3), base)], key)
    samples = {key(one): replace(answer(one), loss=loss, scored=9) for one, loss in zip(base, (1.0, 2.0), strict=True)}
    samples |= {key(one): replace(answer(one), loss=2.0, scored=9) for one in prompts(3)}
    figure = plan.figure(1, samples)
    assert figure.n == 2 and figure.value == pytest.approx(2.718281828**0.5) and not figure.unfinished
    samples[key(base[1])] = base[1].failed("out of memory")
    assert plan.figure(1, samples).n == 1


def test_two_cells_in_one_place_are_a_mistake():
    with pytest.raises(RuntimeError, match="one place"):
        CellPlan([Cell("a", "x", found), Cell("a", "x", found)], key)
    assert len(CellPlan([Cell("a", "x", found), Cell("a", "x", found, table="other")], key).cells) == 2


# Full attention that is not worth its time


def request(plan, row, length):
    return next(
        one for part in plan.left({}) for one in part if (one.measure.spec.label, one.measure.length) == (row, length)
    )


def test_full_attention_is_skipped_for_its_time_and_nothing_else():
    plan = plan_of(study(specs=("full", "dca"), max_full_seconds=7.0))
    places = [(row, length) for row in ("stock", "full", "dca") for length in (512, 1024)]
    unknown = plan.pace(SUBJECT, {})
    assert all(plan.too_long(unknown, request(plan, *place)) is None for place in places)
    every = [one for part in plan.left({}) for one in part]
    short = {one.key: answer(one.measure) for one in every if one.measure.length == 512}
    pace = plan.pace(SUBJECT, short)  # 5.12 seconds at 512, so 10.24 at 1024
    reasons = {place: plan.too_long(pace, request(plan, *place)) for place in places}
    assert {place for place, reason in reasons.items() if reason} == {("stock", 1024), ("full", 1024)}
    assert reasons["stock", 1024] == "skipped: a prompt takes about 10 seconds, more than --max-full-seconds 7"
    free = plan_of(study(specs=("full",)))
    assert free.too_long(pace, request(free, "full", 1024)) is None


def test_that_a_cell_was_skipped_holds_for_one_limit():
    made = study(max_full_seconds=7.0)
    plan = plan_of(made)
    one = request(plan, "stock", 1024)
    skip = one.measure.failed("skipped: a prompt takes long")
    samples = {plan.key_for(one, skip): skip}
    assert plan.figure(one.cell, samples).mark == "skipped" and one.key not in samples
    assert ("stock", 1024) not in [
        (r.measure.spec.label, r.measure.length) for part in plan.left(samples, retry_errors=True) for r in part
    ]
    for limit in (8.0, None):
        other = plan_of(replace(made, max_full_seconds=limit))
        assert other.figure(one.cell, samples).mark == "·" and len(other.left(samples)) == 4
    every = {r.key: answer(r.measure) for part in plan.left({}) for r in part}
    assert plan.figure(one.cell, samples | every).mark is None, "measured under a wider limit"
    assert plan.key_for(one, every[one.key]) == one.key
