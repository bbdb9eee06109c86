"""Banded attention whose rows find their keys by a table of pages equals the same rows with keys side by side."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.banded import BandAngles, Pages, Plan, banded
from longspan.kernels.gpu import tiles
from longspan.rope import Rope, Table
from support.cases import HEAD, build, inv_freq
from support.steps import assert_alike

IMPLS = ["torch", "flash_cpu", "reference", *([] if cpu.unavailable_reason() else ["compiled"])]
IMPLS += ["triton"] if find_spec("triton") and tiles.interpreting() else []
KV_HEADS, SCALE = 2, 0.3
LENGTHS = (37, 1, 2100, 64)  # of each row, its queries among them; more than C looks up at once
SHORT = (37, 1)  # for the interpreter


def plan_of(tokens, lengths):
    """DCA's bands of the last ``tokens`` queries of each row; a query before the first token has no keys."""
    bands = build("dca", {"chunk_size": 7, "local_window": 4, "window": 12}).method.bands(24)
    i = torch.tensor(lengths)[:, None] - tokens + torch.arange(tokens)
    lo = [torch.where(i < 0, 0, band.keys.lo(i).clamp(min=0)) for band in bands]
    hi = [torch.where(i < 0, 0, torch.minimum(band.keys.hi(i), i + 1).clamp(min=0)) for band in bands]
    q_pos = tuple(band.q_pos(i).clamp(min=0) for band in bands)
    return Plan(0, tokens, tuple(range(len(bands))), tuple(lo), tuple(hi), q_pos)


def setting(tokens, size, dtype=torch.float32, gap=0, lengths=LENGTHS):
    """Keys side by side ``[B, Hkv, N, D]`` of each row, and the same in pages, of which the others are poisoned."""
    g = torch.Generator().manual_seed(1)
    each = -(-max(lengths) // size)
    keys, v = (torch.randn(len(lengths), KV_HEADS, each * size, HEAD, generator=g).to(dtype) for _ in range(2))
    q = torch.randn(len(lengths), 4, tokens, HEAD, generator=g).to(dtype)
    table = torch.randperm(len(lengths) * each + 5, generator=g)[: len(lengths) * each].view(len(lengths), each).int()
    step, stored = size + gap, []
    for x in (keys, v):
        held = torch.full((1, KV_HEADS, (len(lengths) * each + 5) * step, HEAD), float("nan"), dtype=dtype)
        own = x.unflatten(2, (each, size)).transpose(1, 2).flatten(0, 1).transpose(0, 1)  # [Hkv, pages, size, D]
        held.unflatten(2, (-1, step))[0][:, table.flatten().long(), :size] = own
        stored.append(held)
    for row, length in enumerate(lengths):
        table[row, -(-length // size) :] = 1 << 30  # never read
    rope = Rope(Table(inv_freq()), HEAD)
    plan = plan_of(tokens, lengths)
    cos, sin = rope.table(torch.stack(plan.q_pos))
    return q, keys, v, stored, Pages(table, size, step), plan, BandAngles(cos, sin), rope


def both(tokens, size, impl, dtype=torch.float32, gap=0, softcap=None):
    lengths = SHORT if impl == "triton" else LENGTHS
    q, keys, v, (paged_keys, paged_v), pages, plan, angles, rope = setting(tokens, size, dtype, gap, lengths)
    options = {"scale": SCALE, "impl": impl, "softcap": softcap}
    bands = len(plan.bands)
    apart = banded(q, [paged_keys] * bands, paged_v, plan, angles, rope, pages=pages, **options)
    return apart, banded(q, [keys] * bands, v, replace(plan, derived={}), angles, rope, **options)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("tokens", [1, 3, 45])
@pytest.mark.parametrize(("size", "gap"), [(16, 0), (16, 4), (5, 1), (1, 0), (4096, 0)])
def test_pages_equal_keys_side_by_side(size, gap, tokens, impl):
    (out, lse), (other, other_lse) = both(tokens, size, impl, gap=gap)
    assert_alike(out, other)
    torch.testing.assert_close(lse, other_lse)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype, impl):
    for tokens in (1, 45):
        (out, _), (other, _) = both(tokens, 16, impl, dtype)
        assert_alike(out, other)


@pytest.mark.parametrize("impl", [name for name in IMPLS if name != "flash_cpu"])
def test_softcap(impl):
    (out, _), (other, _) = both(2, 16, impl, softcap=2.0)
    assert_alike(out, other)


@pytest.mark.skipif("compiled" not in IMPLS, reason="there is no C compiler")
@pytest.mark.parametrize("wrong", [-1, 1 << 20])
def test_a_page_that_is_not_there_is_refused(wrong):
    q, _, _, (keys, v), pages, plan, angles, rope = setting(1, 16)
    pages.table[0, 0] = wrong
    with pytest.raises(ValueError, match="a page lies outside of the stored ones"):
        banded(q, [keys] * len(plan.bands), v, plan, angles, rope, scale=SCALE, impl="compiled", pages=pages)


@pytest.mark.skipif("compiled" not in IMPLS, reason="there is no C compiler")
def test_a_table_with_fewer_pages_than_keys_is_refused():
    q, _, _, (keys, v), pages, plan, angles, rope = setting(1, 16)
    few = Pages(pages.table[:, :-1], 16, 16)
    with pytest.raises(ValueError, match="a range of keys ends outside of the stored ones"):
        banded(q, [keys] * len(plan.bands), v, plan, angles, rope, scale=SCALE, impl="compiled", pages=few)
