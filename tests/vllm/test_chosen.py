"""Chunks chosen by the bounds in the pages: what is chosen and what comes out is the oracle's."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from longspan.errors import LongspanError
from longspan.kernels import cpu
from longspan.paged.attention import PagedAttention
from longspan.paged.bounds import Updates, bounds, last_pages, room
from longspan.paged.chosen import request_bounds
from longspan.paged.pages import NewTokens, text_tokens
from longspan.paged.step import FEW
from longspan.paged.supported import check_pages
from longspan.rope import YaRN
from support.attention import DTYPES, N, setting
from support.cases import HEAD, assert_within_budget, build
from support.paged import paged, poisoned

IMPLS = ("torch", "reference", *(() if cpu.unavailable_reason() else ("compiled",)))
BASE = {"chunk_length": 4, "num_chunks": 5, "score": "bounds", "remap": "dca"}
VARIANTS = {
    "group": {},
    "head": {"share": "head"},
    "layer": {"share": "layer"},
    "chosen alone": {"first_chunk": False, "local_chunks": 1, "num_chunks": 3},
    "choosing inside the window": {"dense": "kept"},
    "choosing from a query within a chunk": {"dense": 21},
    "scaled angles": {"angles": YaRN(factor=2.0)},
}
# Steps as in ``support.paged``, to the end of a text: prefill at once, in chunks, and tokens that come in fours.
STEPS = {
    "mixed": None,
    "at once": [(N, N)],
    "in chunks": [(30, 0), (30, 33), (N - 60, 50)],
    "by few": [(FEW, n) for n in (3, 2, 1, 4)] * 4,
}


def case(**options):
    made = build("longheads", {**BASE, **options})
    check_pages(made.method, made.window)
    return made


def check(case, impl, dtype=torch.float32, size=4, steps=None, **options):
    chooser = "torch" if impl != "compiled" else "auto"
    inputs, extra, truth, plain = setting(case, dtype, chooser, **options)
    out, past = paged(case, impl, inputs, extra, size, **({} if steps is None else {"steps": steps}))
    assert max(past) > 2 * case.window
    for text, tokens in enumerate(past):
        assert_within_budget(*(x[text : text + 1, :, :tokens] for x in (out, plain, truth)))


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, *(pytest.param(dtype, marks=pytest.mark.long) for dtype in (torch.float32, torch.float16))],
    ids=["bf16", "fp32", "fp16"],
)
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_equals_the_oracle(options, dtype):
    for impl in IMPLS:
        check(case(**options), impl, dtype)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("size", [4, 2, 1])
def test_neither_pages_nor_steps_change_it(size, steps):
    for impl in IMPLS:
        check(case(), impl, size=size, steps=steps)


@pytest.mark.parametrize("kv_heads", [4, 1], ids=["mha", "mqa"])
@pytest.mark.parametrize("share", ["group", "head", "layer"])
def test_other_numbers_of_key_heads(share, kv_heads):
    for impl in IMPLS:
        check(case(share=share), impl, kv_heads=kv_heads)


@pytest.mark.parametrize("rope_name", ["half-leading", "interleaved-all", "interleaved-leading"])
def test_partial_and_interleaved_rotation(rope_name):
    for impl in IMPLS:
        check(case(), impl, rope_name=rope_name)


def test_softcap():
    check(case(), "torch", softcap=2.0)


def requests(cuts, table, size):
    """The new tokens of one text, step by step."""
    edges = [0, *cuts]
    for first, stop in pairwise(edges):
        yield NewTokens(0, first, stop - first, table[: -(-stop // size)])


@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("cuts", [range(1, 41), range(3, 41, 3), [5, 16, 17, 40], [40]], ids=["1", "3", "odd", "all"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_bounds_are_the_smallest_and_the_largest_keys(dtype, cuts, together):
    """Whatever pages held before, and wherever steps end."""
    size, length, heads = 2, 8, 3
    keys = torch.randn(max(cuts), heads, HEAD, dtype=torch.float32).to(dtype)
    table = torch.randperm(32, generator=torch.Generator().manual_seed(2))[:20]
    cache = poisoned(32, heads, size, dtype, room=1)
    for one in requests(cuts, table, size):
        few, many = ([one], []) if together else ([], [one])
        Updates(few, many, length, size, cache.device).write(cache, keys[one.past : one.past + one.count])
    full = max(cuts) // length
    low, high = bounds(cache, last_pages(table, full, length, size)[None])
    chunks = keys[: full * length].float().unflatten(0, (full, length))
    assert torch.equal(low[0], chunks.amin(dim=1).transpose(0, 1))
    assert torch.equal(high[0], chunks.amax(dim=1).transpose(0, 1))
    assert cache.isnan().all(), "keys and values are as they were"


@pytest.mark.parametrize("counts", [(24, 8, 2), (22, 4, 2), (21, 3, 1), (24, 2, 12)], ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_bounds_go_on_from_pages_that_another_request_writes_in_the_same_step(order, counts):
    """Three prompts that begin alike: each takes the full pages of the one before, which vLLM shares at once."""
    size, length, heads, past = 2, 16, 3, [0, 0, 0]
    pages, text = [torch.arange(30)] * 3, [torch.randn(40, heads, HEAD)] * 3
    for n in (1, 2):
        past[n] = (past[n - 1] + counts[n - 1]) // size * size
        pages[n] = torch.cat((pages[n - 1][: past[n] // size], torch.arange(30 * n, 30 * n + 30)))
        text[n] = torch.cat((text[n - 1][: past[n]], torch.randn(40, heads, HEAD)))
    requests, rows = [], []
    for n in order:
        stop = past[n] + counts[n]
        requests.append(NewTokens(sum(map(len, rows)), past[n], counts[n], pages[n][: -(-stop // size)]))
        rows.append(text[n][past[n] : stop])
    cache = poisoned(100, heads, size, torch.float32, room=1)
    few, many = ([one for one in requests if (one.count <= FEW) is fits] for fits in (True, False))
    Updates(few, many, length, size, cache.device).write(cache, torch.cat(rows))
    for n, stop in enumerate(map(sum, zip(past, counts, strict=True))):
        last, chunk = (stop - 1) // size, text[n][(stop - 1) // length * length : stop]
        low, high = bounds(cache, pages[n][None, last : last + 1])
        assert torch.equal(low[0, :, 0], chunk.amin(dim=0)) and torch.equal(high[0, :, 0], chunk.amax(dim=0))


class Memory:
    """Stands for queries, and counts the numbers that are asked for beside them."""

    def __init__(self, heads):
        self.shape, self.numbers = (5, heads, HEAD), 0

    def new_empty(self, *shape, dtype=None):
        self.numbers += math.prod(shape)
        return torch.empty(0)


@pytest.mark.parametrize("method", [build("dca", {}), case()], ids=["dca", "chosen chunks"])
def test_a_run_that_measures_memory_takes_what_the_longest_text_takes(method):
    """The copy of its keys and values, and of the bounds that its queries choose by."""
    heads, size, longest = 3, 4, 1000
    attention = PagedAttention(method.method, method.window)
    memory = Memory(heads)
    attention.reserve(memory, heads, longest)
    cache = poisoned(longest // size, heads, size, torch.float32, room=1)
    taken = [*text_tokens(cache, torch.arange(longest // size), longest)]
    if attention.selection is not None:
        taken += request_bounds(attention.selection, cache, torch.arange(longest // size), longest)
    assert sum(x.numel() for x in taken) <= memory.numbers


def test_pages_without_room_are_refused():
    with pytest.raises(LongspanError, match="no room for the bounds"):
        room(poisoned(4, 2, 8, torch.float32))
