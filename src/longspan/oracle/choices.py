"""What selecting methods choose, keep and where they see it: query by query, as their papers say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.oracle.attention import dots
from longspan.oracle.statements import Inputs, marked, states
from longspan.rope import Rope

Pieces = Sequence[tuple[int, int]]


def chunk_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    *,
    scale: float,
    length: int,
    score: str = "representation",
    share: str = "group",
) -> Tensor:
    """LongHeads' scores ``[B, H, T, n]`` of every query for every full chunk; equal for heads that choose together.

    Args:
        q: ``[B, H, T, D]``; k, v: ``[B, Hkv, T, D]``, unrotated.
        length: ``l``.
        score: how a query is held against a chunk.
        share: ``"head"``, ``"group"`` or ``"layer"``: whose scores are summed.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    together = {"head": 1, "group": heads // kv_heads, "layer": heads}[share]
    found = torch.zeros(*q.shape[:3], q.shape[2] // length, dtype=torch.float64)
    for b in range(q.shape[0]):
        for first in range(0, heads, together):
            members = range(first, first + together)
            for c in range(found.shape[-1]):
                own = slice(c * length, (c + 1) * length)
                each = [
                    _against(q[b, h], q[b, h, own], k[b, h, own], v[b, h, own], rope, scale, score) for h in members
                ]
                # Where a chunk offers several items, the best one is the best for all heads together.
                found[b, first : first + together, :, c] = torch.stack(each).sum(dim=0).amax(dim=-1)
    return found


def _against(q: Tensor, own_q: Tensor, own_k: Tensor, own_v: Tensor, rope: Rope, scale: float, score: str) -> Tensor:
    """One head's scores ``[T, items]`` of its queries for what one chunk offers."""
    if score == "representation":
        cos, sin = (x.double() for x in rope.table(torch.arange(len(own_q))))
        turned_q, turned_k = (
            turn(x[None, None], cos, sin)[0, 0] for turn, x in ((rope.rotate_q, own_q), (rope.rotate_k, own_k))
        )
        chunk_query = ((turned_q @ turned_k.T * scale).softmax(dim=-1) @ own_v).mean(dim=0)  # Eq 1
        items = ((chunk_query @ turned_k.T * scale).softmax(dim=-1) @ turned_k)[None]  # Eq 2
    elif score == "bounds":
        return torch.maximum(q * own_k.amin(dim=0), q * own_k.amax(dim=0)).sum(dim=-1, keepdim=True)
    elif score == "token_max":
        items = own_k
    else:
        parts = own_k.tensor_split(1 if score == "mean" else min(4, len(own_k)))
        items = torch.stack([part.mean(dim=0) for part in parts])
    return q @ items.T


def best_chunks(
    scores: Tensor, *, window: int, length: int, count: int, local: int, first: bool = True, lowest: bool = False
) -> Tensor:
    """The chunks ``[B, H, T, m]`` that each query chooses, ascending; -1 in the first ``window`` rows."""
    batch, heads, total, _ = scores.shape
    chosen = torch.full((batch, heads, total, count - local - int(first)), -1)
    for b in range(batch):
        for h in range(heads):
            for i in range(window, total):
                rest = list(range(int(first), i // length - local + 1))
                rest.sort(key=lambda c: float(scores[b, h, i, c]), reverse=not lowest)  # noqa: B023
                chosen[b, h, i] = torch.tensor(sorted(rest[: chosen.shape[-1]]))
    return chosen


def slots(chosen: Tensor, *, window: int, length: int, local: int, first: bool = True) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` ``[B, H, T, T]`` of LongHeads: the kept chunks take slots in their order."""
    batch, heads, total, _ = chosen.shape
    keep = torch.zeros(batch, heads, total, total, dtype=torch.bool)
    rel = torch.zeros(batch, heads, total, total, dtype=torch.int64)
    for b in range(batch):
        for h in range(heads):
            for i in range(total):
                current = i // length
                kept = list(range(current + 1))
                if i >= window:
                    forced = [0] * first + [current - d for d in range(local)]
                    kept = sorted({*forced, *chosen[b, h, i].tolist()})
                for slot, c in enumerate(kept):
                    j = torch.arange(c * length, min((c + 1) * length, i + 1))
                    keep[b, h, i, j] = True
                    rel[b, h, i, j] = (len(kept) - 1 - slot) * length + i % length - j % length
    return keep, rel


def token_scores(
    q: Tensor, k: Tensor, *, share: str = "layer", combine: str = "sum", rope: Rope | None = None, at: int = 0
) -> Tensor:
    """ESA's ``f(m; c)`` ``[B, H, T, T]`` of every query for every token; equal for heads that choose together.

    Unrotated, or seen at the distance ``at`` by the rotation ``rope``.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    if rope is not None and at:
        each = dots(q, k, torch.full((q.shape[2], k.shape[2]), at), rope)
    else:
        each = q.double() @ k.double().repeat_interleave(heads // kv_heads, dim=1).mT
    together = {"head": 1, "group": heads // kv_heads, "layer": heads}[share]
    grouped = each.unflatten(1, (-1, together))
    combined = grouped.sum(dim=2) if combine == "sum" else grouped.amax(dim=2)
    return combined.repeat_interleave(together, dim=1)


def best_tokens(scores: Tensor, pieces: Pieces, *, initial: int, local: int, top_k: int, proximity: int = 1) -> Tensor:
    """The tokens ``[B, H, P, top_k]`` that each piece chooses (Eqs 4 and 8), ascending; the first of equal ones."""
    batch, heads = scores.shape[:2]
    chosen = torch.zeros(batch, heads, len(pieces), top_k, dtype=torch.int64)
    for b in range(batch):
        for h in range(heads):
            for p, (a, z) in enumerate(pieces):
                middle = range(initial, a - local)
                f = scores[b, h, a:z, initial : a - local]
                best = (f - f.amax(dim=1, keepdim=True)).amax(dim=0).tolist()
                near = [max(best[max(n - proximity, 0) : n + proximity + 1]) for n in range(len(best))]
                ranked = sorted(middle, key=lambda m: near[m - initial], reverse=True)  # noqa: B023
                chosen[b, h, p] = torch.tensor(sorted(ranked[:top_k]))
    return chosen


def far_and_near(
    chosen: Tensor, pieces: Pieces, total: int, *, initial: int, local: int, far: int
) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` ``[B, H, T, T]`` of ESA: initial and chosen tokens at ``far``, local ones at ``i - j``.

    Queries in no piece keep everything at its true distance.
    """
    i, j = torch.arange(total)[:, None], torch.arange(total)[None, :]
    keep, rel = ((x.expand(*chosen.shape[:2], -1, -1).clone()) for x in (j <= i, i - j))
    for p, (a, z) in enumerate(pieces):
        keep[:, :, a:z, : a - local] = False
        for b in range(chosen.shape[0]):
            for h in range(chosen.shape[1]):
                distant = torch.cat((torch.arange(initial), chosen[b, h, p]))
                keep[b, h, a:z, distant] = True
                rel[b, h, a:z, distant] = far
    return keep, rel


@states("Chunks")
class StatedChunks:
    """LongHeads' selection; the paper's ablation takes the lowest scores."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        shape = {"length": own.size, "score": own.score, "share": own.share}
        scores = chunk_scores(text.q, text.k, text.v, text.rope, scale=text.scale, **shape)
        lowest = getattr(own, "pick", "best") == "lowest"
        sizes = {"window": own.window, "length": own.size, "count": own.count, "local": own.local, "first": own.first}
        return marked(best_chunks(scores, **sizes, lowest=lowest), text.length, own.size)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        keep, borders = torch.zeros(n, n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
        for i in range(n):
            if i >= own.window:
                borders[i] = (i // own.size - own.local + 1) * own.size
                keep[i, : own.size if own.first else 0] = True
            keep[i, borders[i] : i + 1] = True
        return keep, borders


@states("Tokens")
class StatedTokens:
    """ESA's selection; in an ablation the largest score of the heads that choose together counts."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        combine = getattr(own, "combine", "sum")
        scores = token_scores(text.q, text.k, share=own.share, combine=combine, rope=text.rope, at=own.score_at)
        pieces = [(a, z) for a, z in pieces_of(own, text.length) if a >= own.window]
        sizes = {"initial": own.initial, "local": own.local, "top_k": own.top_k, "proximity": own.proximity}
        return by_piece(best_tokens(scores, pieces, **sizes), pieces, text.length)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        return first_and_local(own, n)


def pieces_of(own: Any, n: int) -> list[tuple[int, int]]:
    """The pieces of ``n`` tokens that arrive at once, more than a window of them."""
    edges = sorted({own.window, n, *range(0, n, own.piece)})
    return list(zip(edges[:-1], edges[1:], strict=True))


def by_piece(tokens: Tensor, pieces: Pieces, n: int) -> Tensor:
    """Tokens ``[B, H, P, m]`` of pieces as ``[B, H, n, n]`` bool, for every query of its piece."""
    chosen = torch.zeros(*tokens.shape[:2], n, n, dtype=torch.bool)
    for p, (a, z) in enumerate(pieces):
        chosen[:, :, a:z] = marked(tokens[:, :, p], n)[:, :, None]
    return chosen


def first_and_local(own: Any, n: int) -> tuple[Tensor, Tensor]:
    """``always`` of what is chosen by piece: the first tokens, those before the piece, and the piece."""
    keep, borders = torch.ones(n, n, dtype=torch.bool).tril(), torch.zeros(n, dtype=torch.int64)
    for a, z in pieces_of(own, n):
        if a >= own.window:
            keep[a:z, own.initial : a - own.local] = False
            borders[a:z] = a - own.local
    return keep, borders
