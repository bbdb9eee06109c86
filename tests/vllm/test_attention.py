"""Methods over pages equal the oracle: texts cut into steps anywhere, pages in any order and poisoned where unused."""

from __future__ import annotations

import pytest
import torch

from longspan.errors import AttachError
from longspan.kernels import cpu
from longspan.vllm.attention import PagedAttention
from longspan.vllm.pages import Slots
from longspan.vllm.settings import check_pages
from longspan.vllm.step import FEW, NewTokens, Step
from support.attention import DTYPES, setting
from support.attention import N as TOKENS
from support.cases import HEAD, all_cases, assert_within_budget, build

IMPLS = ("torch", "reference", *(() if cpu.unavailable_reason() else ("compiled",)))
# What each of two texts brings to a step: none, one token, a few, many, alone or mixed. The cuts lie anywhere in pages.
STEPS = [(20, 0), (1, 7), (1, 1), (FEW, 2), (31, 1), (1, 40), (0, 1), (20, 21), (1, 6), (0, 4)]
PAGES = 64


def supported(case) -> bool:
    try:
        check_pages(case.method, case.window)
    except AttachError:
        return False
    return True


CASES = [case for case in all_cases(selecting=False) if supported(case.values[0])]


def paged(case, impl, inputs, extra, size=8, padding=3):
    """Two texts, step by step, through shuffled pages; each step ends with rows of padding."""
    q, k, v, rope = inputs
    attention = PagedAttention(case.method, case.window, impl)
    cache = torch.full((PAGES, k.shape[1], size, 2 * HEAD), float("nan"), dtype=q.dtype)
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1))
    tables = [order[:32], order[32:]]
    out, past = torch.full_like(q, float("nan")), [0, 0]
    for counts in STEPS:
        requests, first = [], 0
        for text, count in enumerate(counts):
            if count:
                pages = tables[text][: -(-(past[text] + count) // size)]
                requests.append(NewTokens(first, past[text], count, pages))
                first += count
        own = [(text, slice(past[text], past[text] + count)) for text, count in enumerate(counts) if count]
        i = [(tables[text], torch.arange(span.start, span.stop)) for text, span in own]
        mapping = torch.cat([table[j // size] * size + j % size for table, j in i])
        step = Step(attention.tables, requests, Slots.of(mapping, size), size)
        rows = [torch.cat([x[t, :, s] for t, s in own], dim=1).transpose(0, 1) for x in (q, k, v)]
        rows = [torch.cat((x, torch.full_like(x[:padding], 7.0))) for x in rows]
        result = torch.full_like(rows[0], 5.0)
        attention(*rows, cache, step, result, rope, scale=extra["scale"], softcap=extra["softcap"])
        assert (result[step.rows :] == 5).all(), "rows of padding are not written"
        for (text, span), request in zip(own, requests, strict=True):
            out[text, :, span] = result[request.first : request.first + request.count].transpose(0, 1)
            past[text] = span.stop
    return out, past


def check(case, impl, dtype, **options):
    size = options.pop("size", 8)
    inputs, extra, truth, plain = setting(case, dtype, **options)
    out, past = paged(case, impl, inputs, extra, size)
    for text, tokens in enumerate(past):
        assert_within_budget(*(x[text : text + 1, :, :tokens] for x in (out, plain, truth)))


def test_the_steps_use_both_ways():
    counts = {count for step in STEPS for count in step}
    assert {1, FEW} <= counts and max(counts) > FEW and sum(a for a, _ in STEPS) <= TOKENS >= sum(b for _, b in STEPS)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_oracle(case, dtype):
    for impl in IMPLS:
        check(case, impl, dtype)


@pytest.mark.parametrize("kv_heads", [4, 1], ids=["mha", "mqa"])
def test_other_numbers_of_key_heads(kv_heads):
    for impl in IMPLS:
        check(build("dca", {}), impl, torch.float32, kv_heads=kv_heads)


@pytest.mark.long
def test_triton():
    """Interpreted on a CPU."""
    pytest.importorskip("triton")
    check(build("dca", {}), "triton", torch.float32)


@pytest.mark.parametrize("rope_name", ["half-leading", "interleaved-all", "interleaved-leading"])
def test_partial_and_interleaved_rotation(rope_name):
    for impl in IMPLS:
        check(build("dca", {}), impl, torch.float32, rope_name=rope_name)


@pytest.mark.parametrize("size", [4, 16, 32])
def test_the_size_of_a_page_changes_nothing(size):
    for impl in IMPLS:
        check(build("dca", {}), impl, torch.float32, size=size)


def test_a_step_of_padding_alone_changes_nothing():
    case = build("dca", {})
    (q, k, v, rope), extra, _, _ = setting(case, torch.float32)
    attention = PagedAttention(case.method, case.window)
    cache, out = torch.full((4, k.shape[1], 8, 2 * HEAD), 3.0), torch.full_like(q[0, :, :5].transpose(0, 1), 5.0)
    step = Step(attention.tables, [], Slots.of(torch.zeros(0), 8), 8)
    rows = [x[0, :, :5].transpose(0, 1) for x in (q, k, v)]
    attention(*rows, cache, step, out, rope, scale=extra["scale"])
    assert (cache == 3).all() and (out == 5).all()


def test_softcap():
    check(build("dca", {}), "torch", torch.float32, softcap=2.0)


@pytest.mark.parametrize(
    "name, options, reason",
    [
        ("longheads", {}, "chooses keys"),
        ("esa", {}, "chooses keys"),
        ("self-extend", {}, "2 rotations"),
        ("rerope", {}, "2 rotations"),
        ("dynamic-ntk", {}, "angles follow the length"),
        ("dca", {"length_scale": True}, "leave length_scale out"),
    ],
)
def test_what_pages_cannot_hold_is_refused_with_the_reason(name, options, reason):
    case = build(name, options)
    with pytest.raises(AttachError, match=f"{name} cannot run.*{reason}"):
        check_pages(case.method, case.window)


def test_what_runs():
    assert {case.values[0].name for case in CASES} >= {"dca", "string", "full", "pi", "ntk", "yarn", "streaming-llm"}
