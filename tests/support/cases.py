"""What the core's tests run on: every method at default and at unusual parameters, shapes, and a plain eager run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from longspan import oracle as exact
from longspan.attend import Attender, Observer
from longspan.calibration import Calibration
from longspan.memory import KVStore
from longspan.methods import METHODS, Method
from longspan.rope import Rope, Table, rotate
from longspan_eval.reproduce.ablations import ABLATIONS
from support.variants import ABLATED, VARIANTS

WINDOW = 24
HEAD = 16


@dataclass(frozen=True)
class Case:
    """A resolved method and the window it was resolved for."""

    method: Method
    window: int
    label: str

    @property
    def name(self) -> str:
        return self.method.name

    def rope(self, rope: Rope, total: int) -> Rope:
        """The rotation that the method uses at this total length."""
        return rope.with_table(self.method.angles.table(rope.table, self.window, total))

    @property
    def selects(self) -> bool:
        return self.method.selects

    @property
    def follows_call(self) -> bool:
        """Whether a row's output depends on what arrives with it."""
        return self.method.length_dependent or self.method.call_dependent

    def dense(self, n: int) -> tuple[Tensor, Tensor]:
        """``keep`` and ``rel`` of ``n`` tokens, for a method that keeps by indices."""
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        keep = self.method.selection(self.window).keep(i, j) & (j <= i)
        return keep, self.method.positions(self.window).rel(i, j)

    def laid(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """``keep`` and ``rel`` ``[B, H, n, n]``, stated by the oracle, of what was ``chosen`` ``[B, H, n, n]``."""
        return exact.laid(self.method.selection(self.window), self.method.positions(self.window), chosen)

    def stated(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, scale: float) -> Tensor:
        """``[B, H, n, n]`` bool: what the oracle says that each query chooses of tokens that come in one call."""
        return exact.chosen(self.method.selection(self.window), exact.Inputs(q, k, v, rope, scale))


def build(name: str, options: dict, window: int = WINDOW) -> Case:
    """The method with these options; ``angles`` are options of the method's own angles."""
    cls, options = METHODS[name], dict(options)
    if options in ABLATED.get(name, []):
        cls = ABLATIONS[name]
    if isinstance(options.get("angles"), dict):
        options["angles"] = type(cls().angles)(**options["angles"])
    return Case(cls(**options).resolve(window), window, name)


def all_cases(windows: Sequence[int] = (WINDOW,), variants: bool = True, selecting: bool | None = None) -> list:
    """Every method at its defaults in every window, and its variants in the first one.

    ``selecting`` leaves only those that choose keys by looking at them, or only the others.
    """
    cases = []
    for name in METHODS:
        for n, window in enumerate(windows):
            for options in [{}, *(VARIANTS.get(name, []) + ABLATED.get(name, []) if variants and n == 0 else [])]:
                shown = ",".join(f"{k}={v}" for k, v in options.items()) or "defaults"
                case = build(name, options, window)
                if selecting is None or selecting == case.selects:
                    cases.append(pytest.param(case, id=f"{name}-{window}-{shown}"))
    return cases


def in_turn(cases: Sequence, options: Mapping[str, tuple], every: int = 1) -> list:
    """Every case with every one of ``options``, values by what they are called: one set of arguments after the case.

    The short run has a method's defaults with all of them, and one of ``every`` variants with one, in turn; the rest
    take long.
    """
    made = []
    for n, case in enumerate(cases):
        for m, (shown, values) in enumerate(options.items()):
            short = case.id.endswith("-defaults") or n % (every * len(options)) == m
            marks = () if short else (pytest.mark.long,)
            made.append(pytest.param(*case.values, *values, id=f"{case.id}-{shown}", marks=marks))
    return made


def every_other(cases: Sequence) -> list:
    """The cases; of the variants every other one takes long."""
    long = [n % 2 == 1 and not case.id.endswith("-defaults") for n, case in enumerate(cases)]
    marks = [(pytest.mark.long,) if one else () for one in long]
    return [pytest.param(*case.values, id=case.id, marks=one) for case, one in zip(cases, marks, strict=True)]


def inv_freq(channels: int = HEAD, base: float = 10_000.0) -> Tensor:
    return 1.0 / base ** (torch.arange(0, channels, 2).double() / channels)


ROPES = {
    "half-all": lambda: Rope(Table(inv_freq(HEAD)), HEAD),
    "half-leading": lambda: Rope(Table(inv_freq(8)), HEAD),
    "half-trailing": lambda: Rope(Table(inv_freq(8), 1.1), HEAD, start=HEAD - 8),
    "interleaved-all": lambda: Rope(Table(inv_freq(HEAD), 0.9), HEAD, "interleaved"),
    "interleaved-leading": lambda: Rope(Table(inv_freq(8)), HEAD, "interleaved"),
    "interleaved-trailing": lambda: Rope(Table(inv_freq(8)), HEAD, "interleaved", start=HEAD - 8),
}


def make_qkv(
    n: int, *, batch: int = 1, heads: int = 4, kv_heads: int = 2, dv: int = HEAD, dtype=torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys strong enough for a softmax that is far from uniform."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((heads, HEAD), (kv_heads, HEAD), (kv_heads, dv))
    return tuple(torch.randn(batch, h, n, d, generator=g, dtype=torch.float64).mul(1.5).to(dtype) for h, d in shapes)


def keys_and_values(n: int, batch: int = 1) -> tuple[list[Tensor], Tensor]:
    """What a store takes: one rotation of the keys, and values, of two heads of 16."""
    return [torch.randn(batch, 2, n, 16)], torch.randn(batch, 2, n, 16)


def in_pieces(
    attender: Attender, qkv: tuple[Tensor, Tensor, Tensor], rope: Rope, cuts: Sequence[int], store: KVStore, **kwargs
) -> Tensor:
    """The output over all tokens, fed to the store in pieces that end at ``cuts``."""
    edges = [store.length, *cuts]
    spans = pairwise(edges)
    return torch.cat([attender(*(x[:, :, a:b] for x in qkv), rope, store=store, **kwargs) for a, b in spans], dim=2)


def recorded(
    case: Case, impl: str, q: Tensor, k: Tensor, v: Tensor, rope: Rope, calibration: Calibration | None = None, **kwargs
) -> Tensor:
    """What each query chose in one call over all tokens: ``[B, H, n, n]`` bool."""
    attender = Attender(case.method, case.window, impl, calibration)
    attender.observer = Observer(every=True, scores=False)
    attender.observer.begin()
    attender(q, k, v, rope, **kwargs)
    return marks(attender.observer, q.shape[0], q.shape[1], q.shape[2])


def marks(observer: Observer, batch: int, heads: int, n: int) -> Tensor:
    """What an observer saw of tokens without padding, as ``[B, H, n, n]`` bool."""
    chosen, j = torch.zeros(batch, heads, n, n, dtype=torch.bool), torch.arange(n)
    for one in observer.choices:
        own = ((j - one.origin) // one.size == one.units[..., None]).any(dim=-2)  # [S, n]
        own = own.repeat_interleave(heads // len(own), dim=0)
        chosen[one.row, :, one.first : one.query + 1] = own[:, None]
    return chosen


def eager(
    case: Case,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    layout: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """What a plain dense run in q's dtype computes: scores band by band, one softmax in fp32, weights in q's dtype.

    ``layout`` is ``keep`` and ``rel`` of a selecting method, whose scores are made pair by pair.
    """
    n = q.shape[2]
    rope = case.rope(rope, n)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    factor = case.method.query_factor(case.window, n)

    def bounded(part: Tensor) -> Tensor:
        part = part * scale
        return part if softcap is None else softcap * torch.tanh(part / softcap)

    if layout is not None:
        keep, rel = layout
        size = getattr(case.method, "chunk_length", None)
        k_pos = torch.where(rel == i - j, j, 0) if size is None else (j % size).expand_as(rel)
        (qc, qs), (kc, ks) = rope.table((rel + k_pos).clamp(min=0)), rope.table(k_pos)
        pairs = (q.unsqueeze(3).expand(-1, -1, -1, n, -1), k.unsqueeze(2).expand(-1, -1, n, -1, -1))
        rotated_q, rotated_k = (
            rotate(x.flatten(2, 3), c.flatten(2, 3), s.flatten(2, 3), layout=rope.layout, start=rope.start)
            for x, c, s in zip(pairs, (qc, kc), (qs, ks), strict=True)
        )
        scores = (rotated_q[..., None, :] @ rotated_k[..., None])[..., 0, 0].view(*q.shape[:3], n)
        scores = bounded(scores).masked_fill(~keep, float("-inf"))
    else:
        scores = q.new_full((*q.shape[:3], n), float("-inf"))
        for band in case.method.bands(case.window):
            qc, qs = (x * factor for x in rope.table(band.q_pos(i[:, 0])))
            kc, ks = rope.table(band.k_pos(j[0]))
            rotated_q = rotate(q, qc, qs, layout=rope.layout, start=rope.start)
            rotated_k = rotate(k, kc, ks, layout=rope.layout, start=rope.start)
            inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
            scores = torch.where(inside, bounded(rotated_q @ rotated_k.mT), scores)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores)[None, :, None, None].expand(*q.shape[:3], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return weights[..., :n] @ v


def assert_within_budget(out: Tensor, plain: Tensor, truth: Tensor) -> None:
    """The error of ``out`` against the fp64 truth is at most a small multiple of the plain eager run's."""
    unit = torch.finfo(out.dtype).eps * truth.abs().max()  # one rounding of the largest output
    error, allowed = (out.double() - truth).abs(), (plain.double() - truth).abs()
    assert not out.isnan().any()
    assert error.max() <= 3 * allowed.max() + unit, (error.max().item(), allowed.max().item())
    assert error.square().mean().sqrt() <= 2 * allowed.square().mean().sqrt() + unit / 16


def assert_lse_within_budget(lse: Tensor, plain: Tensor, truth: Tensor) -> None:
    """The same of log-sum-exps, one number a row: too few in a small test for their mean error to say anything."""
    unit = torch.finfo(lse.dtype).eps * truth.abs().max()
    error, allowed = (lse.double() - truth).abs().max(), (plain.double() - truth).abs().max()
    assert error <= 3 * allowed + unit, (error.item(), allowed.item())


def assert_same(a: Tensor, b: Tensor) -> None:
    """Equal but for the order of additions."""
    assert a.shape == b.shape and a.dtype == b.dtype
    if a.numel() == 0:
        return
    bound = 256 * torch.finfo(a.dtype).eps * max(1.0, b.abs().max().item())
    assert not a.isnan().any()
    assert (a - b).abs().max() <= bound, (a - b).abs().max().item()
