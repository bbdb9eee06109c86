"""The Triton kernel of banded attention keeps to its contract, interpreted on a CPU or on the GPU that is there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attend import Attender
from longspan.attend.ragged import stacked
from longspan.attend.state import Ranges as AttendRanges
from longspan.bands import Index, Interval, KeyMap
from longspan.kernels import softmax
from longspan.kernels.banded import Banded, banded, make_plan, reference
from longspan.kernels.gpu import launch, tiles
from longspan.memory import KVStore
from longspan.rope import Rope, Table
from support.cases import (
    HEAD,
    ROPES,
    all_cases,
    assert_lse_within_budget,
    assert_same,
    assert_within_budget,
    build,
    in_pieces,
    inv_freq,
    make_qkv,
)

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = "cpu" if tiles.interpreting() else "cuda"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DCA = build("dca", {"chunk_size": 7, "local_window": 4, "window": 12}).method.bands(24)
SCALE = 0.3  # of heads of 16; others have scores of the same size


@dataclass(frozen=True)
class Ranges:
    """A band of given ranges."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]
    k_pos: KeyMap = Index()  # noqa: RUF009  # it is frozen

    def q_pos(self, i):
        return i % 9

    @property
    def keys(self):
        return Interval(lambda i: torch.tensor(self.lo)[i], lambda i: torch.tensor(self.hi)[i])


def plain(q, keys, v, plan, cos_sin, rope, *, scale, softcap):
    """A dense run in q's dtype, softmax in fp32."""
    fold = q.shape[1] // v.shape[1]
    j = torch.arange(v.shape[2], device=q.device)
    parts = []
    for lo, hi, (cos, sin), k in zip(plan.lo, plan.hi, cos_sin, keys, strict=True):
        scores = (rope.rotate_q(q, cos, sin) @ k.repeat_interleave(fold, dim=1).mT).float() * scale
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        seen = (j >= lo.to(q.device)[:, None]) & (j < hi.to(q.device)[:, None])
        parts.append(scores.masked_fill(~seen, float("-inf")))
    scores = torch.cat(parts, dim=-1)
    out = scores.softmax(dim=-1).to(q.dtype) @ torch.cat([v.repeat_interleave(fold, dim=1)] * len(parts), dim=2)
    return out, scores.logsumexp(dim=-1)


def setting(bands, start, stop, *, batch=1, heads=4, kv_heads=2, dk=HEAD, dv=HEAD, dtype=torch.float32, rope=None):
    g = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).mul(1.5).to(dtype).to(DEVICE)

    rope = rope or Rope(Table(inv_freq(dk)), dk)
    plan = make_plan(bands, start, stop)
    used = [bands[n] for n in plan.bands]
    made = {band.k_pos: random(batch, kv_heads, stop, dk) for band in used}
    q, v = random(batch, heads, stop - start, dk), random(batch, kv_heads, stop, dv)
    cos_sin = [tuple(x.to(DEVICE) for x in rope.table(positions)) for positions in plan.q_pos]
    return q, [made[band.k_pos] for band in used], v, plan, cos_sin, rope


def check(q, keys, v, plan, cos_sin, rope, *, softcap=None, rows=slice(None)):
    options = {"scale": SCALE * (HEAD / q.shape[-1]) ** 0.5, "softcap": softcap}
    out, lse = banded(q, keys, v, plan, cos_sin, rope, impl="triton", **options)
    wide = q.double(), [k.double() for k in keys], v.double(), plan, cos_sin, rope
    truth, true_lse = reference.run(Banded(*wide, **options))
    dense, dense_lse = plain(q, keys, v, plan, cos_sin, rope, **options)
    assert out.dtype == q.dtype and out.shape == truth.shape and lse.dtype == torch.float32
    assert_within_budget(out[:, :, rows], dense[:, :, rows], truth[:, :, rows])
    assert_lse_within_budget(lse[:, :, rows], dense_lse[:, :, rows], true_lse[:, :, rows])
    return out, lse


@pytest.mark.parametrize("case", all_cases(variants=False))
def test_methods(case):
    start, stop = 9, 37
    bands = case.method.bands(case.window, start, stop)
    check(*setting(bands, start, stop))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [32, 64, 80, 96, 128, 256])
def test_head_sizes_and_dtypes(width, dtype):
    check(*setting(DCA, 11, 30, heads=2, kv_heads=1, dk=width, dv=width, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dv", [8, 40])
def test_values_of_another_size(dv, dtype):
    check(*setting(DCA, 11, 27, dv=dv, dtype=dtype))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 2), (3, 1), (14, 2), (35, 1)])
def test_groups(heads, kv_heads, monkeypatch):
    """Groups that are no power of two, and one that is larger than a tile."""
    # Small tiles, so that groups exceed one; the interpreter takes larger ones.
    monkeypatch.setattr(tiles, "choose", lambda *_: tiles.Tiles(16, 16, 1, 1))
    check(*setting(DCA, 12, 15, batch=2, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_layouts(rope):
    check(*setting(DCA, 3, 20, rope=rope()))


def test_softcap():
    """One that scores come near to, and one that is so large that it changes nothing."""
    for dtype in DTYPES.values():
        for cap in (2.0, 1e6):
            check(*setting(DCA, 3, 20, dtype=dtype), softcap=cap)
    q, *rest = setting(DCA, 3, 20)
    out, lse = banded(q * 1e5, *rest, scale=SCALE, softcap=30.0, impl="triton")
    assert out.isfinite().all() and lse.isfinite().all(), "scores far beyond where exp overflows"


def test_keys_that_score_minus_infinity_weigh_nothing():
    """More of them than a step sees, before any other."""
    q, keys, *rest = setting(DCA, 180, 181)
    q, keys = torch.zeros_like(q), [k * (torch.arange(HEAD) == 0).to(k) for k in keys]
    q[..., 0] = 1
    for k in keys:
        k[:, :, :170, 0] = float("-inf")
    check(q, keys, *rest)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_queries_that_are_normalised_after_they_are_rotated(dtype):
    norm = torch.nn.RMSNorm(HEAD, dtype=dtype, device=DEVICE)
    norm.weight.data = torch.linspace(-1, 2, HEAD).to(norm.weight)
    rope = Rope(Table(inv_freq()), HEAD, norm_q=lambda x: norm.to(x.dtype)(x).detach())
    with torch.no_grad():
        check(*setting(DCA, 3, 20, batch=2, dtype=dtype, rope=rope))


@pytest.mark.parametrize("parts", [1, 2, 9])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (6, 7), (40, 41), (90, 93)])
def test_decoding_in_parts(start, stop, parts, monkeypatch):
    """One token and few, at chunk borders; more parts than there are steps leave some without a key."""
    # The number of parts follows the GPU, of which there may be none.
    monkeypatch.setattr(tiles, "splits", lambda *_: parts)
    check(*setting(DCA, start, stop, batch=8, heads=2, kv_heads=1))  # of one row the budget is that of few numbers


@pytest.mark.parametrize("cuts", [(7, 14, 21), (1, 6, 8, 27), (13,)])
def test_pieces_equal_one_call(cuts):
    q, keys, v, plan, cos_sin, rope = setting(DCA, 0, 28)
    whole, whole_lse = check(q, keys, v, plan, cos_sin, rope)
    for a, z in zip((0, *cuts), (*cuts, 28), strict=True):
        own = make_plan(DCA, a, z)
        pairs = [tuple(x.to(DEVICE) for x in rope.table(at)) for at in own.q_pos]
        held = [keys[0][:, :, :z] for _ in own.bands]
        out, lse = banded(q[:, :, a:z], held, v[:, :, :z], own, pairs, rope, scale=SCALE, impl="triton")
        torch.testing.assert_close(out, whole[:, :, a:z])
        torch.testing.assert_close(lse, whole_lse[:, :, a:z])


@pytest.mark.parametrize("tokens", [1, 3, 21])
def test_unlike_rows_equal_each_alone(tokens):
    """Rows that begin at other slots, one of them with padding among its queries, in one call."""
    firsts, slots = (0, 5, 11, 28), 30
    q, keys, v, *_ = setting(DCA, 0, slots, batch=len(firsts))
    rope, own = ROPES["half-all"](), []
    for first in firsts:
        start, stop = max(slots - tokens - first, 0), slots - first
        plan = make_plan(DCA, start, stop)
        own.append(AttendRanges(plan, (0,) * len(plan.bands)))
    plan = stacked(own, firsts, tokens).plan
    pairs = [tuple(x.to(DEVICE) for x in rope.table(at)) for at in plan.q_pos]
    held, last = [keys[0]] * len(plan.bands), q[:, :, slots - tokens :]
    out, lse = banded(last, held, v, plan, pairs, rope, scale=SCALE, impl="triton")
    for row, (first, one) in enumerate(zip(firsts, own, strict=True)):
        count = one.plan.stop - one.plan.start
        angles = [tuple(x.to(DEVICE) for x in rope.table(at)) for at in one.plan.q_pos]
        alone = [x[row : row + 1, :, first:] for x in (keys[0], v)]
        of_row, its_keys = last[row : row + 1, :, tokens - count :], [alone[0]] * len(angles)
        expected, sums = banded(of_row, its_keys, alone[1], one.plan, angles, rope, scale=SCALE, impl="triton")
        torch.testing.assert_close(out[row : row + 1, :, tokens - count :], expected)
        torch.testing.assert_close(lse[row : row + 1, :, tokens - count :], sums)
        assert not out[row, :, : tokens - count].any() and lse[row, :, : tokens - count].isneginf().all()


N = 40
border = st.lists(st.integers(0, N), min_size=N, max_size=N).map(tuple)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(border, border, st.booleans()), min_size=1, max_size=3), st.data())
def test_any_ranges(drawn, data):
    """Any ranges whatever, rows without a key among them: those are 0, with a log-sum-exp of -inf."""
    start = data.draw(st.integers(0, N - 1))
    stop = data.draw(st.integers(start + 1, min(N, start + 12)))
    maps = {False: Index(), True: build("rerope", {"w": 3}).method.bands(24)[0].k_pos}
    bands = [Ranges(lo, hi, maps[other]) for lo, hi, other in drawn]
    # The errors of a row hang together by its sum of weights: a mean over few rows, or heads, would say nothing.
    inputs = setting(bands, start, stop, heads=32, kv_heads=8)
    plan = inputs[3]
    some = torch.zeros(stop - start, dtype=torch.bool)
    for lo, hi in zip(plan.lo, plan.hi, strict=True):
        some |= lo < hi
    if some.any():
        out, lse = check(*inputs, rows=some)
        assert (out[:, :, ~some] == 0).all() and (lse[:, :, ~some] == -torch.inf).all()


def test_strides():
    """Heads after tokens in memory, keys in the middle of a buffer, two rotations with strides of their own."""
    bands = build("rerope", {"w": 4}).method.bands(24)
    q, keys, v, *rest = setting(bands, 3, 20, batch=2)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    keys = [torch.nn.functional.pad(k, (0, 0, 2, n + 1))[:, :, 2 : 2 + k.shape[2]] for n, k in enumerate(keys)]
    check(q, keys, v.mT.contiguous().mT, *rest)


def test_no_queries():
    inputs = setting(DCA, 4, 5)
    out, lse = banded(inputs[0][:, :, :0], *inputs[1:], scale=SCALE, impl="triton")
    assert out.shape == (1, 4, 0, HEAD) and lse.shape == (1, 4, 0)


class Apart:
    """Stands for a tensor that brings ranges of itself, and nothing else."""

    def __init__(self, held):
        self.held, self.shape, self.brought = held, held.shape, 0

    def __getitem__(self, key):
        assert key[:2] == (slice(None), slice(None)) and key[2].step is None
        self.brought += key[2].stop - key[2].start
        return self.held[key].clone()


@pytest.mark.parametrize("name", ["dca", "rerope", "streaming-llm", "lm-infinite"])
def test_keys_apart_are_brought_by_range(name):
    options = {"streaming-llm": {"sinks": 2, "recent": 6}, "lm-infinite": {"sinks": 2, "recent": 6}}.get(name, {})
    bands = build(name, options).method.bands(24)
    q, keys, v, plan, cos_sin, rope = setting(bands, 60, 63)
    wanted = banded(q, keys, v, plan, cos_sin, rope, scale=SCALE, impl="triton")
    stands = {id(k): Apart(k) for k in keys}
    held = Apart(v)
    out, lse = banded(q, [stands[id(k)] for k in keys], held, plan, cos_sin, rope, scale=SCALE, impl="triton")
    torch.testing.assert_close(out, wanted[0])
    torch.testing.assert_close(lse, wanted[1])
    if options:
        assert held.brought == 2 + 8, "two sinks, and six recent tokens of each of three queries"


def test_a_named_kernel_runs_or_raises(monkeypatch):
    q, keys, v, *rest = setting(DCA, 4, 5)
    with pytest.raises(ValueError, match="triton cannot run here: no torch.float64; use impl='torch'"):
        banded(q.double(), keys, v, *rest, scale=SCALE, impl="triton")
    with pytest.raises(ValueError, match="triton.*keys or values torch.bfloat16"):
        banded(q, keys, v.bfloat16(), *rest, scale=SCALE, impl="triton")
    with pytest.raises(ValueError, match="triton.*gradients"):
        banded(q.requires_grad_(), keys, v, *rest, scale=SCALE, impl="triton")
    q.requires_grad_(False)
    with pytest.raises(ValueError, match="up to 4 rotations, not 5"):
        banded(q, [k.clone() for k in keys[:1] * 5], v, *rest, scale=SCALE, impl="triton")
    # Triton is installed where tests run.
    monkeypatch.setattr(tiles, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"triton.*not installed.*pip install.*\[gpu\].*impl='torch'"):
        banded(q, keys, v, *rest, scale=SCALE, impl="triton")


@pytest.mark.skipif(DEVICE != "cpu", reason="speaks of CPU tensors")
def test_cpu_tensors_are_for_the_interpreter_only(monkeypatch):
    q, keys, v, *rest = setting(DCA, 4, 5)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="on cpu, and TRITON_INTERPRET=1 is not set"):
        banded(q, keys, v, *rest, scale=SCALE, impl="triton")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dca", {"chunk_size": 13, "local_window": 4}),
        ("longheads", {"chunk_length": 3}),
        ("esa", {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4}),
    ],
)
def test_whole_methods(name, options):
    """Static and gathered keys merged, over a left-padded batch: prefill, a piece, a token."""
    case = build(name, options)
    qkv = [x.to(DEVICE) for x in make_qkv(32, batch=2, dtype=torch.float32)]
    outs = []
    for impl in ("triton", "torch"):
        attender = Attender(case.method, case.window, impl)
        outs.append(in_pieces(attender, qkv, ROPES["half-all"](), (28, 31, 32), KVStore(), scale=SCALE, padding=(0, 3)))
    assert_same(*outs)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_numbers_are_rounded_to_the_nearest(dtype):
    """A row of one part comes out of the merge as torch rounds it."""
    g = torch.Generator().manual_seed(0)
    parts = torch.randn(1, 1, 16, 1, 64, generator=g).to(DEVICE)
    out = torch.empty(1, 1, 16, 64, dtype=dtype, device=DEVICE)
    lse = torch.empty(1, 1, 16, device=DEVICE)
    launch.merge(parts, torch.zeros(1, 1, 16, 1, device=DEVICE), out, lse)
    assert torch.equal(out, parts[:, :, :, 0].to(dtype))
    assert (lse == 0).all()


@pytest.mark.parametrize("count", [2, 3, 33, 70])
def test_parts_are_merged(count):
    """Parts of several steps, some and in one row all of which saw no key."""
    g = torch.Generator().manual_seed(0)
    parts, parts_lse = torch.randn(2, 3, 5, count, 40, generator=g), 9 * torch.randn(2, 3, 5, count, generator=g)
    parts_lse[0, 1, :, 1], parts_lse[1, 2, 3], parts[1, 2, 3] = float("-inf"), float("-inf"), 0.0
    parts, parts_lse = parts.to(DEVICE), parts_lse.to(DEVICE)
    out = torch.empty(2, 5, 3, 40, device=DEVICE).transpose(1, 2)  # as the model reads it
    lse = torch.empty(2, 3, 5, device=DEVICE)
    launch.merge(parts, parts_lse, out, lse)
    whole = parts_lse.double().logsumexp(dim=-1)
    weights = (parts_lse.double() - whole[..., None]).exp().nan_to_num()
    torch.testing.assert_close(out.double(), (weights[..., None] * parts.double()).sum(dim=3), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), whole, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_part_is_merged_in_place(dtype):
    """Rows of both that saw no key, in tensors that lie apart."""
    g = torch.Generator().manual_seed(0)
    out, other = (torch.randn(2, 70, 3, 40, generator=g).to(dtype).transpose(1, 2).to(DEVICE) for _ in range(2))
    lse, other_lse = (9 * torch.randn(2, 3, 140, generator=g).to(DEVICE)[..., ::2] for _ in range(2))
    lse[0, 0, :5], other_lse[0, 0, 3:9] = float("-inf"), float("-inf")
    out[0, 0, :5], other[0, 0, 3:9] = 0.0, 0.0
    expected, expected_lse = out.double(), lse.double()
    softmax.merge(expected, expected_lse, other.double(), other_lse.double())
    launch.merge_into(out, lse, other, other_lse)
    torch.testing.assert_close(out.double(), expected.nan_to_num(), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


def test_a_negative_scale_is_refused():
    q, keys, v, plan, cos_sin, rope = setting(DCA, 11, 27)
    with pytest.raises(ValueError, match="scores are multiplied by -0.5, and it needs a positive number"):
        banded(q, keys, v, plan, cos_sin, rope, scale=-0.5, impl="triton")
