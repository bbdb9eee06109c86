"""Whether what is about to be timed is right: every contestant against the fp64 oracle, at a small length.

The budget of an error is three times what transformers' own attention errs on the same inputs in the same dtype, and
one rounding of the largest output. What a method chose is held against the oracle's choice in fp32, and taken as it is
in narrower dtypes, where two scores may well round to the same number.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from contestants import Contestant, Longspan, Shape, Stock, make
from longspan.attend import Observer
from longspan.methods import ESA, Full, LongHeads
from longspan.methods.dca import DCA
from longspan.oracle import chunk_scores, far_and_near, oracle, slots, token_scores, topk_chunks, topk_tokens
from longspan.rope import Rope, Table

SHAPE = Shape(heads=4, kv_heads=2, width=64, layers=1, window=64)
TOKENS, STEPS = 260, 3  # how many of them are decoded
CUT = 151  # where a prefill is cut in two


def gate(phases: dict[str, tuple[str, ...]], dtype: torch.dtype, device: str = "cpu") -> dict[str, str]:
    """What is wrong, by contestant; those of kvpress and flash alone are not ours to judge."""
    names = dict.fromkeys(name for each in phases.values() for name in each if name not in ("flash", "kvpress"))
    qkv = tuple(x.to(device) for x in SHAPE.qkv(TOKENS, dtype))
    stock = Stock("stock", SHAPE, dtype, device)
    yarn = Rope(Table(stock.rotary.inv_freq.cpu(), stock.rotary.attention_scaling), SHAPE.width)
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)[None, :]
    cpu = [x.cpu() for x in qkv]
    truth = oracle(*cpu, j <= i, i - j, yarn, scale=SHAPE.scale)
    erred = _error(_run(stock, qkv), truth)
    scale = float(truth.abs().max())
    wrong = {}
    if not erred <= 64 * torch.finfo(dtype).eps * scale:
        wrong["stock"] = f"off by {erred:.2e} of {scale:.2e}"
    for name in names:
        if name == "stock":
            continue
        one = smaller(name, dtype, device)
        observer = Observer(every=True, scores=False)
        observer.begin()
        if one.method.selects:
            one.attender.observer = observer
        outs = [_run(one, qkv)]
        if one.method.selects:  # what nobody observes runs in other kernels
            outs.append(_run(smaller(name, dtype, device), qkv))
        keep, rel = _layout(one, cpu, observer, own_choice=dtype != torch.float32)
        expected = oracle(*cpu, keep, rel, one.rope if device == "cpu" else SHAPE.rope(), scale=SHAPE.scale)
        budget = 3 * erred + torch.finfo(dtype).eps * scale
        for error in (_error(out, expected) for out in outs):
            if not error <= budget:  # a NaN is wrong too
                wrong[name] = f"off by {error:.2e}, budget {budget:.2e}"
    return wrong


def smaller(name: str, dtype: torch.dtype, device: str = "cpu") -> Longspan:
    """The contestant, its chunks and query chunks in proportion to the small window."""
    one = make("prefill", name, Shape(), dtype, device)
    assert isinstance(one, Longspan)
    method = one.method
    if isinstance(method, LongHeads):
        method = LongHeads(chunk_length=8, num_chunks=8, score=method.score)
    else:
        method = {"full": Full, "dca": DCA, "esa": ESA}[method.name]()
    return Longspan(name, SHAPE, dtype, method, device=device)


def _pieces() -> list[tuple[int, int]]:
    """A prefill in two chunks of odd sizes, then token by token."""
    cuts = [0, CUT, TOKENS - STEPS, *range(TOKENS - STEPS + 1, TOKENS + 1)]
    return list(pairwise(cuts))


def _run(one: Contestant, qkv: tuple[Tensor, ...]) -> Tensor:
    # transformers' causal flag knows no prefill in chunks.
    pieces = _pieces() if isinstance(one, Longspan) else [(0, TOKENS - STEPS), *_pieces()[-STEPS:]]
    return torch.cat([one(*(x[:, :, a:b] for x in qkv)) for a, b in pieces], dim=2)


def _error(out: Tensor, truth: Tensor) -> float:
    return float((out.cpu().double() - truth).abs().max())


def _layout(one: Longspan, qkv: list[Tensor], observer: Observer, own_choice: bool) -> tuple[Tensor, Tensor]:
    method, window = one.method, one.window
    q, k, v = qkv
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)[None, :]
    groups = SHAPE.heads // SHAPE.kv_heads
    if isinstance(method, LongHeads):
        size, count = method._lk
        sizes = {"length": size, "local": method.local_chunks, "dense_queries": window}
        if own_choice:
            chosen = torch.full((1, SHAPE.heads, TOKENS, count - method.local_chunks - 1), -1)
            for choice in observer.choices:
                chosen[0, :, choice.query] = choice.units.repeat_interleave(groups, dim=0)
        else:
            scores = chunk_scores(q, k, v, SHAPE.rope(), scale=SHAPE.scale, length=size, score=method.score)
            chosen = topk_chunks(scores, count=count, **sizes)
        return slots(chosen, **sizes)
    if isinstance(method, ESA):
        initial, local, top_k, _ = method._sizes
        cut = method.selection(window).runs
        pieces = [piece for a, b in _pieces() if b > window for piece in cut(max(a, window), b, b)]
        if own_choice:
            found = {choice.first: choice.units for choice in observer.choices}
            chosen = torch.stack([found[a].expand(SHAPE.heads, -1) for a, _ in pieces], dim=1)[None]
        else:
            both = {"initial": initial, "local": local, "top_k": top_k}
            chosen = topk_tokens(token_scores(q, k), pieces, **both)
        assert method.far is not None
        return far_and_near(chosen, pieces, TOKENS, initial=initial, local=local, far=method.far)
    return method.selection(window).keep(i, j) & (j <= i), method.positions(window).rel(i, j)
