"""Lookup proposes what followed the longest match, as a search through the whole text finds it."""

from __future__ import annotations

import pytest
import torch

from longspan.drafting import Lookup, lookup


def searched(text, most):
    """The proposal by a search through all places: the longest match of two tokens at least, the last of equals."""
    best, at = 1, None
    for place in range(len(text) - 1):
        n = 0
        while n < 16 and n <= place and text[place - n] == text[-1 - n]:
            n += 1
        if n >= 2 and n >= best:
            best, at = n, place
    if at is None:
        return ()
    found = text[at + 1 : at + 1 + most]
    return tuple((found * most)[:most])


def small_text(tokens, seed, vocabulary=4):
    return torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("vocabulary", [2, 4, 30])
@pytest.mark.parametrize("most", [1, 5, 15])
def test_the_last_of_the_longest_matches_wins(vocabulary, most):
    text, drafter = small_text(90, 1, vocabulary), Lookup()
    drafter.begin(torch.tensor(text[:50]))
    for n in range(50, 90):
        assert drafter.propose(torch.tensor(text[:n]), most).tokens == searched(text[:n], most), n


@pytest.mark.parametrize("count", [3, 1])  # tokens that come at a time
def test_a_text_that_continues_the_one_before_is_as_a_new_one(count, monkeypatch):
    monkeypatch.setattr(lookup, "_NEW", 40)
    drafter, text = Lookup(), small_text(300, 2, 12)
    # The same beginning, another text, a shorter one, and a much longer one.
    for own in (text[:120], [*text[:100], *small_text(30, 3, 12)], small_text(60, 4, 12), text[:20], text):
        drafter.begin(torch.tensor(own))
        grown = list(own)
        for n in range(12):
            grown += [text[(7 * n + k) % 300] for k in range(count)]
            proposed = drafter.propose(torch.tensor(grown), 4).tokens
            assert len(proposed) == len(searched(grown, 4))
            if proposed:
                assert matched(grown, proposed) == matched(grown, searched(grown, 4))


def matched(text, proposed):
    """How many tokens are alike before the place that a proposal was copied from, the best such place."""
    best = 0
    for place in range(len(text) - 1):
        follows = text[place + 1 : place + 1 + len(proposed)]
        if tuple((follows * len(proposed))[: len(proposed)]) == proposed:
            n = 0
            while n < 16 and n <= place and text[place - n] == text[-1 - n]:
                n += 1
            best = max(best, n)
    return best


@pytest.mark.parametrize("text", [[], [3], [3, 3], [1, 2, 3, 4, 5]])
def test_a_text_without_a_match_has_no_proposal(text):
    drafter, ids = Lookup(), torch.tensor(text, dtype=torch.int64)
    drafter.begin(ids)
    assert drafter.propose(ids, 5).tokens == ()


def test_large_ids_are_told_apart():
    big = 2**21 - 1
    ids = torch.tensor([big, big - 1, big, 7, 8, big, big - 1, big])
    drafter = Lookup()
    drafter.begin(ids)
    assert drafter.propose(ids, 2).tokens == (7, 8)


def test_longer_matches_are_kinds_of_their_own():
    kinds = set()
    for size in (2, 3, 4, 9):
        ids = torch.tensor([*range(100, 100 + size), 5, 6, 7, *range(100, 100 + size)])
        drafter = Lookup()
        drafter.begin(ids)
        kinds.add(drafter.propose(ids, 3).kind)
    assert len(kinds) == 4
