"""The kernels in C keep to their contracts: against fp64, over shapes that no method's tests bring up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cases import HEAD, ROPES, all_cases, assert_lse_within_budget, assert_within_budget, in_pieces, inv_freq, make_qkv
from jobs import DTYPES, check, common, per_piece, per_row, random, wide
from longspan.attend import Attender
from longspan.bands import Band, Index, Interval, Origin
from longspan.kernels import native
from longspan.kernels.banded import banded, make_plan
from longspan.kernels.best import compiled as best_compiled
from longspan.kernels.best import torch_ops as best_torch
from longspan.kernels.gathered import gather_into, gathered
from longspan.kernels.scores import products
from longspan.kernels.turning import compiled as turning
from longspan.rope import Rope, Table
from longspan.store import KVStore

if native.why_no_library() is not None:
    pytest.skip(str(native.why_no_library()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
def test_groups_and_head_sizes(group, width, dtype):
    options = {"group": group, "dk": width, "dv": width, "dtype": dtype}
    check(per_row(1, 37, 3, **options))
    check(per_row(2, 1, 5, **options))
    check(per_piece(1, 71, **options))


@pytest.mark.parametrize("dk, dv", [(24, 40), (40, 24), (16, 8), (8, 16), (72, 136)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_sizes_that_differ_and_are_no_multiple_of_sixteen(dk, dv, dtype):
    for group in (1, 2, 4):
        check(per_row(2, 19, 3, dk=dk, dv=dv, dtype=dtype, group=group))
        check(per_piece(2, 40, dk=dk, dv=dv, dtype=dtype, group=group))


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 64, 65])
def test_lengths_of_units(size):
    for group in (1, 2, 4):
        check(per_row(3, size, 3, group=group))
        check(per_row(1, size, 1, 1, group=group, own_positions=False))


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("runs, turned", [(1, False), (1, True), (2, False), (4, False), (4, True)])
def test_pieces(runs, turned, rows):
    check(per_piece(rows, 33, runs=runs, turned=turned, batch=2))


@pytest.mark.parametrize("share", [1, 2, 8])
def test_sharing_and_batches(share):
    check(per_row(2, 16, 3, share=share, group=4, batch=3))
    check(per_row(2, 16, 3, share=share, group=4, own_positions=False))
    check(per_piece(2, 33, share=share, group=4, batch=3))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_layouts(rope):
    check(per_row(2, 16, 2, rope=rope()))
    check(per_piece(2, 20, turned=True, rope=rope()))


def test_softcap_and_large_scores():
    many = {"batch": 8, "group": 8}  # the errors of a row hang together, so that a mean over few says nothing
    for job in (per_row(2, 16, 2, cap=2.0, **many), per_piece(2, 20, cap=2.0, **many)):
        check(job)
        check(replace(job, softcap=None, scale=2.0))


def test_strides():
    job = per_row(2, 16, 3, batch=2)
    q = job.q.transpose(1, 2).contiguous().transpose(1, 2)
    keys, v = (
        torch.nn.functional.pad(x, (0, 0, 2, n))[:, :, 2 : 2 + x.shape[2]] for n, x in ((1, job.keys), (5, job.v))
    )
    check(replace(job, q=q, keys=keys, v=v))
    check(replace(job, q=q[:, :, :1], keys=keys, v=v.mT.contiguous().mT, units=job.units[:, :, :1],
                  positions=job.positions[:, :, :1]))  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_merged_into_a_part(dtype):
    """What is there counts as it stands; a row that has seen nothing yet is as good as none."""
    job = per_row(2, 16, 3, batch=2, dtype=dtype)
    out, lse = random(2, 2, 4, HEAD, dtype=dtype, seed=8).transpose(1, 2), random(2, 4, 2, seed=9)
    out[:, 1], lse[:, 1] = 0, float("-inf")
    merged, whole = (out.clone(), lse.clone()), (out.double(), lse.double())
    gather_into(*merged, job, "compiled")
    gather_into(*whole, wide(job), "reference")
    assert (merged[0] - whole[0]).abs().max() <= 4 * torch.finfo(dtype).eps * whole[0].abs().max()
    assert (merged[1] - whole[1]).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_bands(dtype, threads, monkeypatch):
    """Bands of one key, of none for some rows, and longer ones; on several threads."""
    monkeypatch.setattr(native, "_SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stop, rope = 70, Rope(Table(inv_freq()), HEAD)
        bands = (
            Band("far", lambda i: i * 0 + 9, Origin(), Interval(lambda i: i * 0, lambda i: torch.where(i > 67, 33, 0))),
            Band("near", lambda i: i, Index(), Interval(lambda i: i, lambda i: i + 1)),
        )
        for first in (stop - 1, stop - 5):
            plan = make_plan(bands, first, stop)
            options = common(stop - first, stop, batch=2, group=3, dtype=dtype, rope=rope)
            q, keys, v = (options.pop(name) for name in ("q", "keys", "v"))
            turns = [rope.table(at) for at in plan.q_pos]
            options.pop("rope")
            out, lse = banded(q, [keys, keys], v, plan, turns, rope, impl="compiled", **options)
            plain, plain_lse = banded(q, [keys, keys], v, plan, turns, rope, impl="tiled", **options)
            q, keys, v = q.double(), keys.double(), v.double()
            truth, true_lse = banded(q, [keys, keys], v, plan, turns, rope, impl="reference", **options)
            assert_within_budget(out, plain, truth)
            assert_lse_within_budget(lse, plain_lse, true_lse)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [c for c in all_cases(selecting=True) if not c.values[0].follows_call])
def test_decoding_is_the_prefill(case, dtype, rope):
    """Token by token in C, with padding, against all at once in fp64."""
    q, k, v = make_qkv(83, batch=2, dtype=dtype)
    if dtype != torch.float32:
        pytest.skip("near ties between rounded scores may fall otherwise")
    pads = (0, 5)
    attender = Attender(case.method, case.window, "compiled")
    out = in_pieces(attender, (q, k, v), rope, range(1, 84), KVStore(), scale=0.25, padding=pads)
    for row, pad in enumerate(pads):
        alone = [x[row : row + 1, :, pad:].double() for x in (q, k, v)]
        truth = Attender(case.method, case.window, "reference")(*alone, rope, scale=0.25)
        error = (out[row : row + 1, :, pad:] - truth).abs().max()
        assert error <= 500 * torch.finfo(dtype).eps * truth.abs().max()


@pytest.mark.parametrize("queries", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_products(dtype, queries):
    for width, count in ((8, 1), (16, 33), (40, 70), (512, 31), (8, 4096), (16, 9001)):
        q, keys = random(2, 3, 2, width, dtype=queries), random(2, 3, count, width, dtype=dtype, seed=1)
        truth = q.double() @ keys.double().mT
        found = products(q, keys, impl="compiled")
        assert found.dtype == torch.float32 and found.shape == truth.shape
        torch.testing.assert_close(found.double(), truth, rtol=0, atol=2e-6 * width)
        strided = random(2, 3, 2 * count, width, dtype=dtype, seed=1)[:, :, ::2]
        found = products(q, strided[:, :1].expand(-1, 3, -1, -1), impl="compiled")
        torch.testing.assert_close(found.double(), q.double() @ strided[:, :1].double().mT, rtol=0, atol=2e-6 * width)


@pytest.mark.parametrize("tie", [0.0, 0.05])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("near", [0, 1, 4])
@pytest.mark.parametrize("n, count", [(1, 1), (7, 7), (50, 1), (333, 100), (5000, 999), (5000, 64), (97, 65), (700, 5)])
def test_best(n, count, last, tie, near):
    """Also of scores that share what is best nearby, of which many are equal."""
    g = torch.Generator().manual_seed(6)
    stops = torch.randint(count, n + 1, (9,), generator=g)
    for x in (
        torch.randn(2, 9, n, generator=g),
        torch.randint(-4, 4, (2, 9, n), generator=g).float(),
        torch.arange(n).float().expand(2, 9, n),
    ):
        for start, own_stops in ((0, None), (0, stops), (min(3, n - count), (stops + 3).clamp(max=n))):
            found = best_compiled.best(x, count, tie, last, start, own_stops, near)
            assert torch.equal(found, best_torch.best(x, count, tie, last, start, own_stops, near))


@pytest.mark.parametrize("near", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_best_nearby(n, near):
    scores = random(2, 3, n)
    found = best_torch.best_nearby(scores, near)
    for j in range(n):
        assert torch.equal(found[..., j], scores[..., max(j - near, 0) : j + near + 1].amax(dim=-1))


@pytest.mark.parametrize("count", [5, 70])
def test_what_is_no_number_is_among_the_best(count):
    scores = random(40, 100)
    scores[torch.rand(40, 100, generator=torch.Generator().manual_seed(0)) < 0.02] = float("nan")
    scores[0] = float("nan")
    for row, own in zip(scores, best_compiled.best(scores, count, 0.0, True, 0, None), strict=True):
        assert own.tolist() == sorted(set(own.tolist())) and own.min() >= 0 and own.max() < 100
        assert row[own].isnan().sum() == min(count, int(row.isnan().sum()))


def test_scores_without_end_tie():
    scores = random(2, 12)
    scores[:, [7, 9]] = float("inf")
    assert best_compiled.best(scores, 2, 0.1, False, 0, None).tolist() == [[7, 9]] * 2


def test_there_have_to_be_so_many():
    with pytest.raises(ValueError, match="fewer scores than are to be chosen"):
        best_compiled.best(random(2, 9), 5, 0.0, True, 1, torch.tensor([8, 4]))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_turned_keys(rope, dtype):
    rope = rope()
    k = random(1, 3, 4, HEAD, dtype=dtype).transpose(1, 2)
    turn = rope.table(torch.tensor([3, 0, 41]))
    found, wanted = turning.turned(rope, k, *turn), rope.turn_k(k, *turn)
    assert found.dtype == dtype and (found - wanted).abs().max() <= torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.parametrize("value", [0.0, -0.0, 6e-8, -3e-6, 65504.0, 1e5, float("inf"), float("nan"), 1.0009765625])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_numbers_are_read_and_rounded_as_torch_does(value, dtype):
    """A single key's value comes out as it went in, of whatever size."""
    job = per_row(1, 1, 1, dtype=dtype)
    v = torch.full(job.v.shape, value).to(dtype)
    ((_, out, _),) = gathered(replace(job, v=v), "compiled")
    torch.testing.assert_close(out, v[:, :1, :1].expand_as(out), rtol=0, atol=0, equal_nan=True)


def test_what_is_no_number_shows():
    job = per_row(1, 16, 2)
    keys = job.keys.clone()
    keys[:, :, int(job.units[0, 0, 0, 0]) * 16, 3] = float("nan")
    ((_, out, lse),) = gathered(replace(job, keys=keys), "compiled")
    assert out[:, :2].isnan().all() and lse[:, :2].isnan().all()


def test_a_named_kernel_runs_or_raises():
    job = per_row(2, 16, 2)
    with pytest.raises(ValueError, match="compiled cannot run here: no torch.float64; use impl='tiled'"):
        gathered(wide(job), "compiled")
    with pytest.raises(ValueError, match="compiled.*head size of 12 is no multiple of 8"):
        gathered(per_row(2, 16, 2, dv=12), "compiled")
    with pytest.raises(ValueError, match="compiled.*gradients"):
        gathered(replace(job, v=job.v.clone().requires_grad_()), "compiled")
    with pytest.raises(ValueError, match="compiled.*normalises"):
        gathered(replace(job, rope=Rope(Table(inv_freq()), HEAD, norm_q=torch.nn.functional.normalize)), "compiled")
    with pytest.raises(ValueError, match="compiled cannot run here: the queries are torch.float64"):
        products(random(1, 1, 1, 8).double(), random(1, 1, 1, 8).double(), impl="compiled")
