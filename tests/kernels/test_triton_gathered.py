"""The Triton kernels of gathered attention keep to their contract, interpreted on a CPU or on the GPU that is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.kernels.gathered import PerQueryChunk, PerRow, gathered, reference
from longspan.kernels.gpu import tiles
from longspan.rope import Rope, Table
from support.cases import HEAD, ROPES, assert_lse_within_budget, assert_within_budget, inv_freq

pytest.importorskip("triton")

from longspan.kernels.gathered import triton, triton_jit_chunk

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = "cpu" if tiles.interpreting() else "cuda"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PLACES = 40  # positions that have angles


def plain(job):
    """The contract as a dense run in q's dtype: scores rounded to it, softmax in fp32, weights rounded to it."""

    class Rounding(Rope):
        def rotate_q(self, q, cos, sin):
            return super().rotate_q(q.to(job.q.dtype), cos, sin)

    rope = job.rope
    rounding = Rounding(rope.table, rope.head_dim, rope.layout, rope.start, rope.norm_q, rope.norm_k)
    own = replace(job, rope=rounding)
    # The reference widens what it is given; keys and values that it cannot widen are multiplied in their own dtype.
    kept, torch.Tensor.double = torch.Tensor.double, lambda self: self
    try:
        return (reference.by_row if isinstance(job, PerRow) else reference.by_query_chunk)(own)
    finally:
        torch.Tensor.double = kept


def wide(job):
    return replace(job, q=job.q.double(), keys=job.keys.double(), v=job.v.double())


def check(job):
    ((_, out, lse),) = gathered(job, "triton")
    ((_, truth, true_lse),) = gathered(wide(job), "reference")
    dense, dense_lse = plain(job)
    assert out.dtype == job.q.dtype and out.shape == truth.shape and lse.dtype == torch.float32
    assert_within_budget(out, dense, truth)
    assert_lse_within_budget(lse, dense_lse, true_lse)


def common(rows, stored, *, batch=1, heads=4, kv_heads=2, dk=HEAD, dv=HEAD, dtype=torch.float32, rope=None, cap=None):
    g = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).mul(1.5).to(dtype).to(DEVICE)

    rope = rope or Rope(Table(inv_freq(dk)), dk)
    return {
        "q": random(batch, heads, rows, dk),
        "keys": random(batch, kv_heads, stored, dk),
        "v": random(batch, kv_heads, stored, dv),
        "rope": rope,
        "scale": 1.2 * dk**-0.5,
        "softcap": cap,
    }


def per_row(rows, size, count, available=6, *, share=2, own_positions=True, **options):
    """Every row chooses ``count`` of ``available`` units, no unit twice."""
    base = common(rows, available * size, **options)
    g = torch.Generator().manual_seed(4)
    batch = base["q"].shape[0]
    units = torch.rand(batch, share, rows, available, generator=g).argsort(dim=-1)[..., :count]
    shape = units.shape if own_positions else (rows, count)
    positions = torch.randint(0, PLACES, shape, generator=g)
    table = tuple(x.to(DEVICE) for x in base["rope"].table(torch.arange(PLACES)))
    return PerRow(units=units.to(DEVICE), size=size, positions=positions.to(DEVICE), table=table, **base)


def per_chunk(rows, count, stored=50, *, share=2, runs=1, rotated=False, **options):
    base = common(rows, stored, **options)
    g = torch.Generator().manual_seed(5)
    batch, rope = base["q"].shape[0], base["rope"]
    tokens = torch.rand(batch, share, stored, generator=g).argsort(dim=-1)[..., :count].sort(dim=-1).values

    def table(n):
        return tuple(x.to(DEVICE) for x in rope.table(torch.randint(0, PLACES, (n,), generator=g)))

    ends = torch.randint(0, count + 1, (batch, share, runs), generator=g).sort(dim=-1).values
    ends[..., -1] = count
    return PerQueryChunk(
        tokens=tokens.to(DEVICE),
        cos_sin=tuple(table(rows) for _ in range(runs)),
        ends=ends.to(DEVICE) if runs > 1 else None,
        key_cos_sin=table(count) if rotated else None,
        **base,
    )


# Units as rows walk them (few rows; short units) and as they walk rows (many rows, units of 16 tokens and more).
WAYS = {"walked": (3, 16, 3), "odd": (3, 19, 3), "short": (4, 5, 4), "single": (5, 1, 5), "grouped": (9, 19, 3)}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_rows(way, dtype):
    check(per_row(*way, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("runs", "rotated"), [(1, False), (1, True), (3, False), (4, True)])
def test_pieces(runs, rotated, dtype):
    check(per_chunk(5, 33, runs=runs, rotated=rotated, dtype=dtype))


@pytest.mark.parametrize(
    ("width", "dv"), [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (16, 40), (80, 8)]
)
def test_head_sizes(width, dv):
    for dtype in (torch.float32, torch.bfloat16):
        options = {"heads": 6, "kv_heads": 1, "share": 1, "dk": width, "dv": dv, "dtype": dtype}
        check(per_row(3, 17, 2, **options))
        check(per_row(9, 16, 1, 2, **options))
        check(per_row(3, 2, 3, **options))
        check(per_chunk(5, 20, rotated=True, **options))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_layouts(rope):
    check(per_row(2, 16, 2, rope=rope()))
    check(per_row(2, 1, 3, rope=rope()))
    check(per_chunk(3, 20, rotated=True, rope=rope()))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "share"), [(4, 2, 1), (4, 2, 4), (3, 1, 1), (3, 1, 3), (14, 2, 2), (18, 1, 1)]
)
def test_sharing(heads, kv_heads, share, monkeypatch):
    """Choices by layer, key head and query head; groups that are no power of two, and larger than a tile."""
    # Small tiles and few rows, so that groups exceed one; the interpreter takes larger ones.
    monkeypatch.setattr(tiles, "choose", lambda *_: tiles.Tiles(16, 16, 1, 1))
    monkeypatch.setattr(tiles, "splits", lambda *_: 1)
    monkeypatch.setattr(triton, "FEW_ROWS", 2)
    options = {"heads": heads, "kv_heads": kv_heads, "share": share, "batch": 2}
    check(per_row(1, 16, 2, **options))
    check(per_row(2, 3, 2, own_positions=heads == 3, **options))
    check(per_row(3, 16, 2, 3, own_positions=heads != 3, **options))
    check(per_chunk(2, 17, runs=2, **options))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_decoding_in_parts(parts, monkeypatch):
    """One row; units cut in the middle, and more parts than there are steps."""
    # The number of parts follows the GPU, of which there may be none.
    monkeypatch.setattr(tiles, "splits", lambda *_: parts)
    for job in (per_row(1, 40, 3), per_row(1, 3, 6), per_row(1, 1, 4), per_chunk(1, 37), per_chunk(1, 37, runs=3)):
        check(job)


def test_a_chunk_of_one_run_copies_nothing_to_the_device(monkeypatch):
    """A copy from the CPU's memory waits for the device, once a query chunk and layer."""
    copied = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
                copied.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    # There may be no GPU: tensors without memory stand for those on it, and nothing runs.
    monkeypatch.setattr(tiles, "choose", lambda *_: tiles.Tiles(16, 16, 1, 1))
    monkeypatch.setattr(tiles, "splits", lambda *_: 1)
    monkeypatch.setattr(triton_jit_chunk, "by_query_chunk", {(1, 2, 1): lambda *args, **constants: None})
    job = per_chunk(5, 20)
    with Watched():
        there = {name: torch.empty_like(getattr(job, name), device="meta") for name in ("q", "keys", "v", "tokens")}
        cos_sin = tuple(tuple(torch.empty_like(x, device="meta") for x in one) for one in job.cos_sin)
        triton._by_query_chunk(replace(job, cos_sin=cos_sin, **there))
    assert not copied


def test_softcap():
    for job in (per_row(2, 16, 2, cap=2.0), per_row(9, 17, 2, 3, cap=2.0), per_chunk(2, 20, cap=2.0)):
        check(job)


def test_queries_that_are_normalised_after_they_are_rotated():
    rope = Rope(Table(inv_freq()), HEAD, norm_q=lambda x: torch.nn.functional.normalize(x, dim=-1) * 4)
    check(per_row(2, 16, 3, rope=rope))
    check(per_row(9, 16, 3, rope=rope))
    check(per_row(9, 16, 3, own_positions=False, rope=rope))
    check(per_chunk(4, 20, runs=2, rope=rope))
    with pytest.raises(ValueError, match="triton.*normalises queries.*shorter than 16 tokens; use impl='torch'"):
        gathered(per_row(2, 4, 3, rope=rope), "triton")
    rope.norm_k = torch.nn.functional.normalize
    with pytest.raises(ValueError, match="triton.*normalises keys"):
        gathered(per_chunk(4, 20, rotated=True, rope=rope), "triton")
    check(per_chunk(4, 20, rope=rope))


def test_rows_beyond_the_budget(monkeypatch):
    """Rows are gathered around units in several goes where their parts would take too much memory."""
    # A small budget: a job of this size exceeds it.
    monkeypatch.setattr(triton, "CHANNELS_AT_ONCE", 4 * 2 * HEAD * 4)  # four rows, of which the last go has one
    check(per_row(9, 16, 2, 3))


def test_strides():
    job = per_row(9, 16, 2, 3, batch=2)
    q = job.q.transpose(1, 2).contiguous().transpose(1, 2)
    keys, v = (
        torch.nn.functional.pad(x, (0, 0, 2, n))[:, :, 2 : 2 + x.shape[2]] for n, x in ((1, job.keys), (5, job.v))
    )
    check(replace(job, q=q, keys=keys, v=v))
    check(replace(job, q=q[:, :, :2], keys=keys, v=v.mT.contiguous().mT, units=job.units[:, :, :2],
                  positions=job.positions[:, :, :2]))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.data())
def test_a_schedule_gives_every_pair_to_one_tile_of_its_unit(share, rows, count, available, places, data):
    units = torch.tensor(
        data.draw(st.lists(st.integers(0, available - 1), min_size=share * rows * count, max_size=share * rows * count))
    ).view(1, share, rows, count)
    order, schedule = triton.schedule_tiles(units, available, places)
    for s in range(share):
        done = []
        for unit, first, takes in schedule[0, s].tolist():
            assert 0 <= takes <= places and 0 <= unit < available
            pairs = order[0, s, first : first + takes].tolist()
            assert len(pairs) == takes and all(units[0, s].flatten()[pair] == unit for pair in pairs)
            done += pairs
        assert sorted(done) == list(range(rows * count))


def test_a_named_kernel_runs_or_raises(monkeypatch):
    job = per_row(2, 16, 2)
    with pytest.raises(ValueError, match="triton cannot run here: no torch.float64; use impl='torch'"):
        gathered(wide(job), "triton")
    with pytest.raises(ValueError, match="triton.*gradients"):
        gathered(replace(job, v=job.v.clone().requires_grad_()), "triton")
    # Triton is installed where tests run.
    monkeypatch.setattr(tiles, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"triton.*not installed.*pip install.*\[gpu\]"):
        gathered(per_chunk(2, 20), "triton")
