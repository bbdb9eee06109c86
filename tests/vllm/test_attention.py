"""Methods over pages equal the oracle: texts cut into steps anywhere, pages in any order and poisoned where unused."""

from __future__ import annotations

import pytest
import torch

from longspan.errors import AttachError
from longspan.kernels import cpu
from longspan.paged.attention import PagedAttention
from longspan.paged.pages import Slots
from longspan.paged.step import FEW, Step
from longspan.paged.supported import check_pages
from support.attention import DTYPES, setting
from support.attention import N as TOKENS
from support.cases import HEAD, all_cases, assert_within_budget, build, in_turn
from support.paged import STEPS, paged

IMPLS = ("torch", "reference", *(() if cpu.unavailable_reason() else ("compiled",)))


def supported(case) -> bool:
    try:
        check_pages(case.method, case.window)
    except AttachError:
        return False
    return True


CASES = [case for case in all_cases(selecting=False) if supported(case.values[0])]


def check(case, impl, dtype, **options):
    size = options.pop("size", 8)
    inputs, extra, truth, plain = setting(case, dtype, **options)
    out, past = paged(case, impl, inputs, extra, size)
    for text, tokens in enumerate(past):
        assert_within_budget(*(x[text : text + 1, :, :tokens] for x in (out, plain, truth)))


def test_the_steps_use_both_ways():
    counts = {count for step in STEPS for count in step}
    assert {1, FEW} <= counts and max(counts) > FEW and sum(a for a, _ in STEPS) <= TOKENS >= sum(b for _, b in STEPS)


@pytest.mark.parametrize(("case", "dtype"), in_turn(CASES, {name: (dtype,) for name, dtype in DTYPES.items()}, every=2))
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
    ("name", "options", "reason"),
    [
        ("longheads", {}, "chooses keys by more .* take longheads with score=bounds and remap=dca"),
        ("longheads", {"score": "bounds"}, "a position of its own; take longheads with score=bounds and remap=dca"),
        ("longheads", {"score": "mean", "remap": "dca"}, "chooses keys by more"),
        ("esa", {}, "chooses keys by more"),
        ("infllm", {}, "chooses keys by more"),
        ("self-extend", {}, "2 rotations"),
        ("rerope", {}, "2 rotations"),
        ("dynamic-ntk", {}, "angles follow the length"),
        ("dca", {"length_scale": 0.1}, "leave length_scale out"),
    ],
)
def test_what_pages_cannot_hold_is_refused_with_the_reason(name, options, reason):
    case = build(name, options)
    with pytest.raises(AttachError, match=f"{name} cannot run.*{reason}"):
        check_pages(case.method, case.window)


def test_what_runs():
    assert {case.values[0].name for case in CASES} >= {"dca", "string", "full", "pi", "ntk", "yarn", "streaming-llm"}
