"""The kernels in C keep to their contracts: against fp64, over shapes that no method's tests bring up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from longspan.attend import Attender
from longspan.bands import Band, Index, Interval, Origin
from longspan.kernels import cpu
from longspan.kernels.banded import banded, make_plan
from longspan.kernels.gathered import gather_into, gathered
from longspan.memory import KVStore
from longspan.rope import Rope, Table
from support.cases import (
    HEAD,
    ROPES,
    all_cases,
    assert_lse_within_budget,
    assert_within_budget,
    every_other,
    in_pieces,
    inv_freq,
    make_qkv,
)
from support.jobs import DTYPES, check, common, per_chunk, per_row, random, wide

if cpu.unavailable_reason() is not None:
    pytest.skip(str(cpu.unavailable_reason()), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
def test_groups_and_head_sizes(group, width, dtype):
    options = {"group": group, "dk": width, "dv": width, "dtype": dtype}
    check(per_row(1, 37, 3, **options))
    check(per_row(2, 1, 5, **options))
    check(per_chunk(1, 71, **options))


@pytest.mark.parametrize(("dk", "dv"), [(24, 40), (40, 24), (16, 8), (8, 16), (72, 136), (56, 120)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_sizes_that_differ_and_are_no_multiple_of_sixteen(dk, dv, dtype):
    for group in (1, 2, 4):
        check(per_row(2, 19, 3, dk=dk, dv=dv, dtype=dtype, group=group))
        check(per_chunk(2, 40, dk=dk, dv=dv, dtype=dtype, group=group))


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 64, 65])
def test_lengths_of_units(size):
    for group in (1, 2, 4):
        check(per_row(3, size, 3, group=group))
        check(per_row(1, size, 1, 1, group=group, own_positions=False))


def test_tokens_that_are_seen_from_few_positions():
    """Neighbours of one position are seen in one go; it ends with the row, though the next begins with the same one."""
    job = per_row(3, 1, 5)
    for positions in (torch.full_like(job.positions, 9), torch.tensor([9, 9, 4, 9, 9]).expand_as(job.positions)):
        check(replace(job, positions=positions))


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize(("runs", "rotated"), [(1, False), (1, True), (2, False), (4, False), (4, True)])
def test_pieces(runs, rotated, rows):
    check(per_chunk(rows, 33, runs=runs, rotated=rotated, batch=2))


@pytest.mark.parametrize("share", [1, 2, 8])
def test_sharing_and_batches(share):
    check(per_row(2, 16, 3, share=share, group=4, batch=3))
    check(per_row(2, 16, 3, share=share, group=4, own_positions=False))
    check(per_chunk(2, 33, share=share, group=4, batch=3))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_layouts(rope):
    check(per_row(2, 16, 2, rope=rope()))
    check(per_chunk(2, 20, rotated=True, rope=rope()))


def test_softcap_and_large_scores():
    many = {"batch": 8, "group": 8}  # the errors of a row hang together, so that a mean over few says nothing
    for job in (per_row(2, 16, 2, cap=2.0, **many), per_chunk(2, 20, cap=2.0, **many)):
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
def test_bands(dtype, threads):
    """Bands of one key, of none for some rows, and longer ones; on several threads."""
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
            cos_sin = [rope.table(at) for at in plan.q_pos]
            options.pop("rope")
            with cpu.settings(numbers_per_thread=1):
                out, lse = banded(q, [keys, keys], v, plan, cos_sin, rope, impl="compiled", **options)
            plain, plain_lse = banded(q, [keys, keys], v, plan, cos_sin, rope, impl="torch", **options)
            q, keys, v = q.double(), keys.double(), v.double()
            truth, true_lse = banded(q, [keys, keys], v, plan, cos_sin, rope, impl="reference", **options)
            assert_within_budget(out, plain, truth)
            assert_lse_within_budget(lse, plain_lse, true_lse)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("case", every_other([c for c in all_cases(selecting=True) if not c.values[0].follows_call]))
def test_decoding_is_the_prefill(case, rope):
    """Token by token in C, with padding, against all at once in fp64; in bf16 near ties may fall otherwise."""
    q, k, v = make_qkv(83, batch=2, dtype=torch.float32)
    pads = (0, 5)
    attender = Attender(case.method, case.window, "compiled")
    out = in_pieces(attender, (q, k, v), rope, range(1, 84), KVStore(), scale=0.25, padding=pads)
    for row, pad in enumerate(pads):
        alone = [x[row : row + 1, :, pad:].double() for x in (q, k, v)]
        truth = Attender(case.method, case.window, "reference")(*alone, rope, scale=0.25)
        error = (out[row : row + 1, :, pad:] - truth).abs().max()
        assert error <= 500 * torch.finfo(torch.float32).eps * truth.abs().max()


@pytest.mark.parametrize("value", [0.0, -0.0, 6e-8, -3e-6, 65504.0, 1e5, float("inf"), float("nan"), 1.0009765625])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_numbers_are_read_and_rounded_as_torch_does(value, dtype):
    """A single key's value comes out as it went in, of whatever size."""
    job = per_row(1, 1, 1, dtype=dtype)
    v = torch.full(job.v.shape, value).to(dtype)
    ((_, out, _),) = gathered(replace(job, v=v), "compiled")
    torch.testing.assert_close(out, v[:, :1, :1].expand_as(out), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("rows", [1, 20])
def test_means_between_two_numbers_are_rounded_to_even(rows, dtype):
    job, eps = per_row(rows, 16, 1, dtype=dtype), torch.finfo(dtype).eps
    for low in (1.0, 1 + eps):
        v = torch.full_like(job.v, low)
        v[:, :, ::2] += eps
        ((_, out, _),) = gathered(replace(job, keys=torch.zeros_like(job.keys), v=v), "compiled")
        assert (out == torch.tensor(low + eps / 2, dtype=torch.float64).to(dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows", [1, 20])
def test_an_infinite_value_is_not_just_a_large_one(rows, dtype):
    job = per_row(rows, 16, 1, dtype=dtype)
    v = torch.zeros_like(job.v)
    v[:, :, ::16] = float("inf")
    ((_, out, _),) = gathered(replace(job, keys=torch.zeros_like(job.keys), v=v), "compiled")
    assert out.isposinf().all()


@pytest.mark.parametrize("rows", [1, 20])
def test_weights_at_the_end_of_the_range_of_fp32(rows):
    """Scores that fall from key to key, over all that exp can hold, and further."""
    job = per_row(rows, 200, 1, available=1)
    q, keys = torch.zeros_like(job.q), torch.zeros_like(job.keys)
    q[..., 0], keys[..., 0] = 1, -torch.arange(keys.shape[2])
    check(replace(job, q=q, keys=keys, scale=1.0, positions=torch.zeros_like(job.positions)))


@pytest.mark.parametrize("rows", [1, 20])
def test_keys_that_score_minus_infinity_weigh_nothing(rows):
    """More of them than are seen at once, before any other."""
    job = per_row(rows, 200, 1, available=1)
    q, keys = torch.zeros_like(job.q), torch.zeros_like(job.keys)
    q[..., 0], keys[..., 0] = 1, job.keys[..., 0]
    keys[:, :, :150, 0] = float("-inf")
    check(replace(job, q=q, keys=keys, positions=torch.zeros_like(job.positions)))


def test_what_is_no_number_shows():
    job = per_row(1, 16, 2)
    keys = job.keys.clone()
    keys[:, :, int(job.units[0, 0, 0, 0]) * 16, 3] = float("nan")
    ((_, out, lse),) = gathered(replace(job, keys=keys), "compiled")
    assert out[:, :2].isnan().all() and lse[:, :2].isnan().all()


def test_a_named_kernel_runs_or_raises():
    job = per_row(2, 16, 2)
    with pytest.raises(ValueError, match="compiled cannot run here: no torch.float64; use impl='torch'"):
        gathered(wide(job), "compiled")
    with pytest.raises(ValueError, match="compiled.*head size of 12 is not a multiple of 8"):
        gathered(per_row(2, 16, 2, dv=12), "compiled")
    with pytest.raises(ValueError, match="compiled.*gradients"):
        gathered(replace(job, v=job.v.clone().requires_grad_()), "compiled")
    with pytest.raises(ValueError, match="compiled.*normalises"):
        gathered(replace(job, rope=Rope(Table(inv_freq()), HEAD, norm_q=torch.nn.functional.normalize)), "compiled")
