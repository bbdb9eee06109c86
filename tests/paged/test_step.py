"""What a step computes once is right for each of its layers, whatever differs between them."""

from __future__ import annotations

import pytest
import torch

from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import FEW, Step
from longspan.rope import YaRN
from support.cases import HEAD, ROPES, build, make_qkv
from support.paged import poisoned

SIZE, PAGES = 4, 64
# What each of two texts brings to a step: many tokens, then one or a few that read their keys in the pages.
STEPS = [(60, 50), (1, 0), (1, 1), (FEW, 1), (0, 2), (6, 1)]
CHOSEN = {"chunk_length": 4, "num_chunks": 5, "score": "bounds", "remap": "dca"}
CASES = {
    "dca": build("dca", {}),
    "scaled angles": build("dca", {"angles": YaRN(factor=4.0)}),
    "chosen chunks": build("longheads", CHOSEN),
}


def layers(room):
    """Queries, keys, values, rotation and pages of layers, which differ in each of these."""
    shared = ROPES["half-all"]()
    differ = [(shared, 2, 1), (shared, 2, 1), (ROPES["interleaved-all"](), 2, 1), (shared, 4, 1), (shared, 2, room)]
    for seed, (rope, kv_heads, own_room) in enumerate(differ):
        inputs = make_qkv(80, batch=2, kv_heads=kv_heads, dtype=torch.float32, seed=seed)
        yield *inputs, rope, poisoned(PAGES, kv_heads, SIZE, torch.float32, room=own_room)


def outputs(case, impl, share):
    """What each layer gives in each step, of layers that share a step or have each one of its own."""
    attention = PagedAttention(case.method, case.window, impl)
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1))
    texts, past, found = [order[: PAGES // 2], order[PAGES // 2 :]], [0, 0], []
    own = list(layers(room=1 if case.selects else 3))
    for counts in STEPS:
        spans = [(text, slice(past[text], past[text] + count)) for text, count in enumerate(counts) if count]
        firsts = [0, counts[0]]
        requests = [
            NewTokens(firsts[text], s.start, s.stop - s.start, texts[text][: -(-s.stop // SIZE)]) for text, s in spans
        ]
        i = [(texts[text], torch.arange(s.start, s.stop)) for text, s in spans]
        slots = Slots.of(torch.cat([pages[j // SIZE] * SIZE + j % SIZE for pages, j in i]), SIZE)
        table = torch.stack([texts[text] for text, _ in spans])
        step = Step(attention.tables, requests, slots, SIZE, table)
        for q, k, v, rope, cache in own:
            rows = [torch.cat([x[text, :, s] for text, s in spans], dim=1).transpose(0, 1) for x in (q, k, v)]
            found.append(torch.empty_like(rows[0]))
            one = step if share else Step(attention.tables, requests, slots, SIZE, table)
            attention(*rows, cache, one, found[-1], rope, scale=HEAD**-0.5)
        past = [a + b for a, b in zip(past, counts, strict=True)]
    return found


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layers_that_share_a_step_give_what_each_gives_alone(case, impl):
    for shared, alone in zip(outputs(case, impl, True), outputs(case, impl, False), strict=True):
        assert shared.isfinite().all() and torch.equal(shared, alone)
