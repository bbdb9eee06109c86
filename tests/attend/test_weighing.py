"""The weights of groups of keys are those that attention's output is made of."""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender, GroupWeights, LayerCall, weighing
from longspan.memory import KVStore
from support.cases import HEAD, ROPES, all_cases, make_qkv

N, NEW, SCALE = 83, 5, HEAD**-0.5


def weighed(case, groups, count, heads=1, sinks=None):
    """The output and the weights of the last tokens of a text."""
    q, k, v = make_qkv(N, heads=heads, kv_heads=1, dtype=torch.float32)
    attender, store = Attender(case.method, case.window), KVStore()
    layer = LayerCall(ROPES["half-all"](), SCALE, (0,), sinks=sinks)
    attender(*(x[:, :, :-NEW] for x in (q, k, v)), layer.rope, scale=SCALE, store=store)
    weights = GroupWeights(attender, groups, count)
    return weights(*(x[:, :, -NEW:] for x in (q, k, v)), layer, store)[0], weights.take(), v[0, 0]


@pytest.mark.parametrize("sunk", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("case", all_cases())
def test_weights_times_values_are_the_output(case, sunk):
    out, weights, values = weighed(case, torch.arange(N), N, sinks=torch.tensor([1.5]) if sunk else None)
    torch.testing.assert_close(weights @ values, out[:, 0], rtol=1e-4, atol=1e-5)
    total = weights.sum(dim=1)
    assert weights.min() >= 0 and total.max() < 1 + 1e-5
    assert bool(total.min() < 1 - 1e-4) == sunk


@pytest.mark.parametrize("case", all_cases(variants=False))
def test_groups_add_up_keys_over_all_heads_in_any_number_of_blocks(case, monkeypatch):
    _, each, _ = weighed(case, torch.arange(N), N, heads=4)
    groups, count = torch.arange(N) // 3, 90
    groups[50:60] = -1
    monkeypatch.setattr(weighing, "_AT_ONCE", 1)
    _, weights, _ = weighed(case, groups[: N - 2], count, heads=4)  # the last two keys are of no group either
    known = torch.arange(N - 2)[groups[: N - 2] >= 0]
    expected = torch.zeros(NEW, count).index_add(1, groups[known], each[:, known])
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
