"""What the core's tests run on: every method at default and at unusual parameters, shapes, and a plain eager run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from longspan.attend import Attender
from longspan.methods import METHODS, Method
from longspan.rope import Rope, Table, rotate
from longspan.store import KVStore

WINDOW = 24
HEAD = 16

# Parameters beyond the defaults, by method; a method without an entry is tested at its defaults.
VARIANTS: dict[str, list[dict]] = {
    "streaming-llm": [{"sinks": 0}, {"sinks": 3, "recent": 7}, {"sinks": 4, "recent": 1}],
    "lm-infinite": [{"sinks": 3, "recent": 7, "cap": 7}, {"sinks": 2, "recent": 6, "cap": 11}, {"recent": 9, "cap": 4}],
    "rerope": [{"w": 1}, {"w": 7}],
    "self-extend": [{"group": 1}, {"group": 3, "neighbors": 7}, {"group": 5, "neighbors": 5}, {"target_length": 200}],
    "string": [{"shift": 7, "local": 0}, {"shift": 9, "local": 5}, {"shift": 4, "local": 4}],
    "dca": [
        {"parts": "intra"},
        {"parts": "intra+inter"},
        {"parts": "intra+inter", "chunk_size": 7},
        {"chunk_size": 13, "local_window": 4},
        {"chunk_size": 5, "local_window": 0},
        {"chunk_size": 5},  # half the window and less: w > s
        {"chunk_size": 7, "local_window": 6, "window": 20},
        {"chunk_size": 1, "local_window": 1},
        {"chunk_size": 11, "length_scale": True},
    ],
    "pi": [{"angles": {"scale": 1.0}}, {"angles": {"target_length": 60}}],
    "ntk": [{"angles": {"scale": 1.0}}, {"angles": {"scale": 2.5}}],
    "dynamic-ntk": [{"angles": {"factor": 3.0}}],
    "yarn": [{"angles": {"factor": 1.0}}, {"angles": {"factor": 2.0, "attention_factor": 1.0}}],
}


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

    def dense(self, n: int) -> tuple[Tensor, Tensor]:
        """``keep`` and ``rel`` of ``n`` tokens."""
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        return self.method.keep(i, j), self.method.rel(i, j)


def build(name: str, options: dict, window: int = WINDOW) -> Case:
    """The method with these options; ``angles`` are options of the method's own angles."""
    cls = METHODS[name]
    options = dict(options)
    if "angles" in options:
        options["angles"] = type(cls().angles)(**options["angles"])
    return Case(cls(**options).resolve(window), window, name)


def all_cases(windows: Sequence[int] = (WINDOW,), variants: bool = True) -> list:
    """Every method at its defaults in every window, and its variants in the first one."""
    cases = []
    for name in METHODS:
        for n, window in enumerate(windows):
            for options in [{}, *(VARIANTS.get(name, []) if variants and n == 0 else [])]:
                shown = ",".join(f"{k}={v}" for k, v in options.items()) or "defaults"
                cases.append(pytest.param(build(name, options, window), id=f"{name}-{window}-{shown}"))
    return cases


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


def in_pieces(
    attender: Attender, qkv: tuple[Tensor, Tensor, Tensor], rope: Rope, cuts: Sequence[int], store: KVStore, **kwargs
) -> Tensor:
    """The output over all tokens, fed to the store in pieces that end at ``cuts``."""
    edges = [store.length, *cuts]
    spans = zip(edges[:-1], edges[1:], strict=True)
    return torch.cat([attender(*(x[:, :, a:b] for x in qkv), rope, store=store, **kwargs) for a, b in spans], dim=2)


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
) -> Tensor:
    """What a plain dense run in q's dtype computes: scores band by band, one softmax in fp32, weights in q's dtype."""
    n = q.shape[2]
    rope = case.rope(rope, n)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q.new_full((*q.shape[:3], n), float("-inf"))
    factor = case.method.query_factor(case.window, n)
    for band in case.method.bands():
        qc, qs = (x * factor for x in rope.table(band.q_pos(i[:, 0])))
        kc, ks = rope.table(band.k_pos(j[0]))
        turned_q = rotate(q, qc, qs, layout=rope.layout, start=rope.start)
        turned_k = rotate(k, kc, ks, layout=rope.layout, start=rope.start)
        inside = (j >= band.keys.lo(i)) & (j < band.keys.hi(i)) & (j <= i)
        part = turned_q @ turned_k.mT * scale
        if softcap is not None:
            part = softcap * torch.tanh(part / softcap)
        scores = torch.where(inside, part, scores)
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


def assert_same(a: Tensor, b: Tensor) -> None:
    """Equal but for the order of additions."""
    assert a.shape == b.shape and a.dtype == b.dtype
    if a.numel() == 0:
        return
    bound = 256 * torch.finfo(a.dtype).eps * max(1.0, b.abs().max().item())
    assert not a.isnan().any()
    assert (a - b).abs().max() <= bound, (a - b).abs().max().item()
