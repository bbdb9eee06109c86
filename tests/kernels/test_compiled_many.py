"""Tiles of many rows in C: every size of a tile, of what is left over, and of who shares, against fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.banded import Plan, banded, flash_cpu
from longspan.kernels.gathered import compiled, gather_into, gathered
from longspan.kernels.scores import products, representations
from support.cases import HEAD, ROPES, assert_within_budget
from support.jobs import DTYPES, PLACES, check, common, per_chunk, per_row, random, wide

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="there is no C compiler")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [8, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 24])
def test_groups_and_head_sizes(group, width, dtype):
    check(per_row(19, 16, 3, group=group, dk=width, dv=width, dtype=dtype))
    check(per_chunk(19, 45, group=group, dk=width, dv=width, dtype=dtype))


@pytest.mark.parametrize("rows", [3, 7, 8, 9, 12, 13, 24, 25, 49, 95, 97, 193, 200])
def test_rows(rows):
    """From one narrow panel to more than one tile."""
    check(per_row(rows, 16, 3, group=1))
    check(per_chunk(rows, 45, group=1))


@pytest.mark.parametrize("size", [1, 2, 16, 17, 127, 128, 129, 300])
def test_lengths_of_units(size):
    """Units of few tokens are walked, and those longer than a step take several."""
    check(per_row(30, size, 3))
    check(per_row(30, size, 3, share=1, own_positions=False))


@pytest.mark.parametrize(("dk", "dv"), [(24, 40), (40, 24), (16, 8), (72, 136), (56, 120)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_sizes_that_differ(dk, dv, dtype):
    check(per_row(21, 16, 3, dk=dk, dv=dv, dtype=dtype))
    check(per_chunk(21, 45, dk=dk, dv=dv, dtype=dtype))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("share", [1, 2, 8])
def test_blocks_of_rows_shared_by_threads(share, threads, monkeypatch):
    # Small blocks: a few rows fill several.
    monkeypatch.setattr(compiled, "ROWS_AT_ONCE", 20)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(per_row(33, 16, 3, batch=3, share=share, group=4))
        check(per_chunk(33, 60, batch=3, share=share, group=4, runs=4))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_layouts(rope):
    if rope().norm_q is None:
        check(per_row(20, 16, 3, dk=rope().head_dim, dv=rope().head_dim, rope=rope()))
        check(per_chunk(20, 45, dk=rope().head_dim, dv=rope().head_dim, rope=rope(), rotated=True))


@pytest.mark.parametrize("cap", [2.0, 1e6])
def test_softcap(cap):
    """One that scores come near to, and one that is so large that it changes nothing."""
    check(per_row(20, 16, 3, cap=cap))
    check(per_chunk(20, 45, cap=cap))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_bands_of_any_ranges(kv_heads, dtype):
    """Tiles of more than one step of keys, rows that see other ranges, nothing of a band, or nothing at all."""
    rows, stored = 230, 420
    g = torch.Generator().manual_seed(7)
    options = common(rows, stored, batch=2, group=4 // kv_heads, kv_heads=kv_heads, dtype=dtype)
    q, keys, v, rope = (options.pop(name) for name in ("q", "keys", "v", "rope"))
    low = torch.randint(0, stored, (3, rows), generator=g)
    high = torch.minimum(low + torch.randint(0, 300, (3, rows), generator=g), torch.tensor(stored))
    high[:, 100:110] = low[:, 100:110]
    at = torch.randint(0, PLACES, (3, rows), generator=g)
    plan = Plan(stored - rows, stored, (0, 1, 2), tuple(low), tuple(high), tuple(at))
    cos_sin = [rope.table(own) for own in at]
    run = {"plan": plan, "cos_sin": cos_sin, "rope": rope, "scale": options["scale"]}
    out, lse = banded(q, [keys] * 3, v, impl="compiled", **run)
    truth, true_lse = banded(q.double(), [keys.double()] * 3, v.double(), impl="reference", **run)
    seen = (high > low).any(dim=0)
    plain, plain_lse = banded(q, [keys] * 3, v, impl="torch", **run)
    flash, flash_lse = banded(q, [keys] * 3, v, impl="flash_cpu", **run)
    for own, own_lse in ((out, lse), (plain, plain_lse), (flash, flash_lse), (truth, true_lse)):
        assert (own[:, :, ~seen] == 0).all() and (own_lse[:, :, ~seen] == float("-inf")).all()
    assert_within_budget(out, plain, truth)
    assert_within_budget(flash, plain, truth)
    assert (lse - true_lse)[:, :, seen].abs().max() <= 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("rows", [9, 300])
def test_flash_attention_where_torch_takes_no_groups_of_heads(rows, monkeypatch):
    """Before torch 2.9; later ones compute the same either way."""
    options = common(rows, rows, batch=2, group=2, kv_heads=2, dtype=torch.float32)
    q, keys, v, rope = (options.pop(name) for name in ("q", "keys", "v", "rope"))
    every, at = torch.arange(rows), torch.arange(rows)[None]
    plan = Plan(0, rows, (0,), (torch.zeros_like(every),), (every + 1,), tuple(at))
    run = {"plan": plan, "cos_sin": [rope.table(at[0])], "rope": rope, "scale": options["scale"]}
    truth = banded(q.double(), [keys.double()], v.double(), impl="reference", **run)
    for takes_groups in {flash_cpu.TAKES_GROUPS, False}:
        # The torch that runs this may take them.
        monkeypatch.setattr(flash_cpu, "TAKES_GROUPS", takes_groups)
        for found, true in zip(banded(q, [keys], v, impl="flash_cpu", **run), truth, strict=True):
            torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("make", [lambda **o: per_row(30, 16, 3, **o), lambda **o: per_chunk(30, 45, runs=4, **o)])
def test_merged_into_a_part(make, dtype):
    job = make(batch=2, dtype=dtype)
    out, lse = random(2, 30, 4, HEAD, dtype=dtype, seed=8).transpose(1, 2), random(2, 4, 30, seed=9)
    out[:, 1], lse[:, 1] = 0, float("-inf")
    out[:, :, 11], lse[:, :, 11] = 0, float("-inf")
    merged, whole = (out.clone(), lse.clone()), (out.double(), lse.double())
    gather_into(*merged, job, "compiled")
    gather_into(*whole, wide(job), "reference")
    assert (merged[0] - whole[0]).abs().max() <= 4 * torch.finfo(dtype).eps * whole[0].abs().max()
    assert (merged[1] - whole[1]).abs().max() <= 1e-5


def test_default_dtypes_and_devices_change_nothing():
    job, keys = per_row(20, 16, 3), random(1, 2, 5000, HEAD)
    scores, tokens = random(1, 2, 1, HEAD), [random(2, 3, 16, HEAD, seed=n) for n in range(3)]
    scored, made = products(scores, keys), representations(*tokens, job.rope, 0.3, impl="compiled")
    ((_, out, lse),) = gathered(job, "compiled")
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")):
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                assert torch.equal(products(scores, keys), scored)
                assert torch.equal(representations(*tokens, job.rope, 0.3, impl="compiled"), made)
                ((_, again, again_lse),) = gathered(job, "compiled")
                assert torch.equal(again, out) and torch.equal(again_lse, lse)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800001, -1])
@pytest.mark.parametrize("rows", [1, 20])
def test_what_is_no_number_shows(rows, bits):
    job = per_row(rows, 16, 5)
    job.keys[:, :, 3] = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    ((_, out, lse),) = gathered(job, "compiled")
    assert out.isnan().all() and lse.isnan().all()


def test_nobody_asks():
    job = per_row(20, 16, 3, batch=2)
    empty = replace(job, q=job.q[:0], keys=job.keys[:0], v=job.v[:0], units=job.units[:0], positions=job.positions[:0])
    ((_, out, _),) = gathered(empty, "compiled")
    assert out.shape == (0, *job.q.shape[1:])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("openmp", [True, False])
def test_any_number_of_threads_gives_the_same(threads, openmp):
    """Those of torch's OpenMP, or of the call's own; more of them than there is to do."""
    job = per_row(200, 16, 5)
    ((_, alone, _),) = gathered(job, "compiled")
    used, before = [], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with cpu.settings(openmp=openmp, around=lambda name, threads, run: used.append(threads) or run()):
            ((_, out, _),) = gathered(job, "compiled")
    finally:
        torch.set_num_threads(before)
    assert used == [threads] and torch.equal(out, alone)
