"""The length of drafts follows what was accepted and what forwards take, and drafting gives up if it does not pay."""

from __future__ import annotations

import random

import pytest

from longspan.drafting import DraftLengths, Record
from longspan.drafting.lengths import MOST


def answered(tokens, share, cost, record=None, kind="3 tokens alike", seed=0, noise=0.0):
    """Seconds of an answer over those without drafts, tokens by acceptance, and the length of the last drafts."""
    chance, record = random.Random(seed), Record() if record is None else record
    draft, seconds, written, lengths = DraftLengths(record), 0.0, 0, [0]

    def took(own):
        return own * (1 + noise * chance.random())

    while written < tokens:
        n = draft.length(kind, MOST)
        this = took(cost(n) if n else 1.0)
        draft.took(n, this)
        seconds, written = seconds + this, written + 1
        if n:
            accepted = next((k for k in range(n) if chance.random() >= share), n)
            draft.accepted(kind, n, accepted, ended=False)
            written += accepted
            lengths.append(n)
    return seconds / (written * (1 + noise / 2)), lengths


COSTS = {"weights alone": lambda n: 1.05 + 0.01 * n, "half": lambda n: 1.1 + 0.1 * n, "each token": lambda n: 1.0 + n}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_an_answer_is_never_much_slower(cost, noise, share):
    for tokens in (2000,) if noise else (20, 100, 2000):
        ratio, _ = answered(tokens, share, COSTS[cost], noise=noise)
        # One draft of three tokens, whose cost nobody knew.
        assert ratio <= 1.05 + COSTS[cost](3) / tokens


@pytest.mark.parametrize(("share", "most"), [(1.0, 0.15), (0.9, 0.35)])
def test_what_is_accepted_pays(share, most):
    ratio, lengths = answered(1000, share, COSTS["weights alone"])
    assert ratio <= most and lengths[-1] >= 10


def test_lengths_fall_with_acceptance_and_with_cost():
    def last(share, cost):
        return sum(answered(2000, share, COSTS[cost])[1][-20:]) / 20

    assert last(0.9, "weights alone") > last(0.5, "weights alone") > last(0.2, "weights alone")
    assert last(0.9, "weights alone") > last(0.9, "half")


def test_what_was_given_up_is_tried_again():
    record = Record()
    answered(500, 0.0, COSTS["half"], record)
    ratio, _ = answered(2000, 1.0, COSTS["half"], record)
    assert ratio < 0.5


def test_nothing_is_drafted_before_a_forward_without_drafts():
    draft = DraftLengths(Record())
    assert draft.length("8 tokens alike", 5) == 0
    assert not draft.affords
    draft.took(0, 1.0)
    assert draft.affords
    assert 0 < draft.length("8 tokens alike", 5) <= 5
    assert draft.length("8 tokens alike", 0) == 0


def test_an_answer_that_ends_says_nothing_of_the_next_guess():
    records = Record(), Record()
    for record, ended in zip(records, (True, False), strict=True):
        DraftLengths(record).accepted("3 tokens alike", 8, 2, ended=ended)
    assert records[0].share("3 tokens alike") > records[1].share("3 tokens alike")
