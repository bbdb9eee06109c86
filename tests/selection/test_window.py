"""Selections by indices alone: the keys of their bands are the keys that they keep."""

from __future__ import annotations

import pytest
import torch

from longspan.selection import Everything, SinksAndRecent


@pytest.mark.parametrize(
    "selection", [Everything(), SinksAndRecent(0, 1), SinksAndRecent(4, 8), SinksAndRecent(8, 4), SinksAndRecent(3, 50)]
)
def test_what_is_always_kept_is_what_it_keeps(selection):
    i, j = torch.arange(40)[:, None], torch.arange(40)[None]
    always = selection.always()
    kept = (j < always.head) | (j >= always.border(i))
    assert torch.equal(kept & (j <= i), selection.keep(i, j) & (j <= i))


@pytest.mark.parametrize(("selection", "budget"), [(Everything(), None), (SinksAndRecent(4, 8), 12)])
def test_the_budget_is_how_many_keys_a_far_query_keeps(selection, budget):
    i, j = torch.arange(60, 64)[:, None], torch.arange(64)[None]
    assert selection.budget == budget
    if budget is not None:
        assert (selection.keep(i, j) & (j <= i)).sum(-1).tolist() == [budget] * 4
