"""Halving as a pure function: what it reads, who stands, that it goes on as it would have; and the rule of a choice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan_eval.tune.choice import choose
from longspan_eval.tune.halving import FINALISTS, FIRST, Outcome, Standing, found, ranked, standing

TEXTS = 16


@st.composite
def worlds(draw):
    """What each candidate would make of each text, and a budget."""
    count = draw(st.integers(1, 9))
    rates = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    costs = draw(st.lists(st.floats(0.5, 9.0), min_size=count, max_size=count))
    broken = draw(st.sets(st.integers(0, count - 1), max_size=2))
    world = {}
    for row in range(count):
        for text in range(TEXTS):
            right = tuple(float((row * 7 + text * 3 + n) % 5 < rates[row]) for n in range(4))
            failed = "it cannot run" if row in broken else None
            world[row, text] = Outcome(right, 3.0 + row / 7, costs[row], 0.001 * (row + 1), error=failed)
    return count, world, draw(st.floats(0.0, 300.0))


def run(count, world, budget, done=None):
    """All that is read, in its order."""
    done, order = dict(done or {}), []
    while (place := standing(count, done, budget, TEXTS).next) is not None:
        assert place not in done
        done[place] = world[place]
        order.append(place)
    return done, order


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_it_ends_within_the_budget_and_compares_only_what_read_the_same(world):
    count, outcomes, budget = world
    done, order = run(count, outcomes, budget)
    dearest = max(one.seconds for one in outcomes.values())
    assert sum(one.seconds for one in done.values()) <= max(budget + dearest, outcomes[order[0]].seconds)
    stands = standing(count, done, budget, TEXTS)
    assert all((row, text) in done for row in stands.rows for text in range(stands.texts))
    assert all(done[row, text].error is None for row in stands.rows for text in range(stands.texts))
    assert order[0] == (0, 0)
    assert [row for row, text in order if text == 0] == list(range(len({row for row, _ in done})))


@settings(max_examples=100, deadline=None)
@given(worlds(), st.integers(0, 40))
def test_a_measurement_that_was_stopped_goes_on_as_it_would_have(world, stopped):
    count, outcomes, budget = world
    whole, order = run(count, outcomes, budget)
    part = {place: outcomes[place] for place in order[:stopped]}
    again, rest = run(count, outcomes, budget, part)
    assert order[:stopped] + rest == order and again == whole


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_the_better_half_reads_on(world):
    """Who reads a text is among the best of all that read the ones before it."""
    count, outcomes, budget = world
    done, _ = run(count, outcomes, budget)
    readers = {text: {row for row, at in done if at == text} for text in range(TEXTS)}
    for read in (1, 2, 4, 8):
        before = [row for row in range(count) if all((row, t) in done and not done[row, t].error for t in range(read))]
        better = ranked(before, done, read)[: max(FINALISTS, (len(before) + 1) // 2)]
        assert readers[read] <= set(better)


def test_with_time_for_all_every_candidate_reads_and_the_finalists_read_everything():
    world = {(row, text): Outcome((float(row),), 3.0, 1.0, 0.1) for row in range(8) for text in range(TEXTS)}
    world |= {(row, text): Outcome((float(row > 5),), 3.0, 1.0, 0.1) for row in range(8) for text in range(TEXTS)}
    done, _ = run(8, world, 1000.0)
    assert standing(8, done, 1000.0, TEXTS) == Standing(None, (6, 7), TEXTS)
    assert [len({row for row, at in done if at == text}) for text in (0, 1, 2, 4, 15)] == [8, 4, 2, 2, 2]
    assert found(7, done, TEXTS) == TEXTS


def test_the_first_text_takes_its_share_of_the_time():
    world = {(row, text): Outcome((1.0,), 3.0, 1.0, 0.1) for row in range(50) for text in range(TEXTS)}
    done, _ = run(50, world, 20.0)
    assert sum(text == 0 for _, text in done) == FIRST * 20
    more, _ = run(50, world, 40.0, done)
    assert sum(text == 0 for _, text in more) > FIRST * 20 and done.items() <= more.items()


def outcomes(rows):
    """Of each candidate: questions found of ten in each of four texts, losses, and seconds for a token."""
    return {
        (row, text): Outcome(tuple(float(n < right) for n in range(10)), losses[text], 1.0, read)
        for row, (right, losses, read) in enumerate(rows)
        for text in range(4)
    }


FLAT, WORSE, NOISY = (3.0,) * 4, (3.1, 3.11, 3.09, 3.1), (3.0, 3.1, 2.9, 3.01)


@pytest.mark.parametrize(
    ("rows", "chosen", "near", "alike"),
    [
        ([(5, FLAT, 0.1), (9, WORSE, 0.9)], 1, (1,), (1,)),  # far more found, whatever it costs
        ([(9, WORSE, 0.1), (9, FLAT, 0.9)], 1, (0, 1), (1,)),  # as many found: what predicts better
        ([(9, FLAT, 0.9), (9, NOISY, 0.1)], 1, (0, 1), (0, 1)),  # and as well predicted: the faster
        ([(9, FLAT, 0.9), (9, NOISY, 0.9)], 0, (0, 1), (0, 1)),  # all alike: the first
        ([(9, WORSE, 0.9), (9, FLAT, 0.9), (2, FLAT, 0.0)], 1, (0, 1), (1,)),
    ],
)
def test_the_rule(rows, chosen, near, alike):
    choice = choose(Standing(None, tuple(range(len(rows))), 4), outcomes(rows))
    assert (choice.row, choice.near, choice.alike) == (chosen, near, alike)


def test_differences_within_one_standard_error_are_noise():
    """One question of forty apart is one error; of two that differ in the same direction it is more."""
    done = outcomes([(9, WORSE, 0.1), (9, FLAT, 0.1)])
    flipped = Outcome((0.0, *done[1, 0].found[1:]), 3.0, 1.0, 0.1)
    stands = Standing(None, (0, 1), 4)
    assert choose(stands, {**done, (1, 0): flipped}).near == (0, 1)
    assert choose(stands, {**done, (1, 0): flipped, (1, 1): flipped}).near == (0,)
