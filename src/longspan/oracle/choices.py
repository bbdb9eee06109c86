"""The scores, choices, kept keys and positions of LongHeads and ESA, query by query, as their papers define them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from longspan.oracle.attention import dots
from longspan.oracle.statements import Inputs, marked, states
from longspan.rope import Rope

ChunkRanges = Sequence[tuple[int, int]]


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
    """LongHeads' scores of every query for every full chunk.

    Args:
        q: ``[B, H, T, D]``, unrotated.
        k, v: ``[B, Hkv, T, D]``, unrotated.
        scale: the factor on scores in the attention inside a chunk.
        length: ``l``, the tokens of a chunk.
        score: the score of a query for a chunk, a value of ``ChunkScore``.
        share: ``"head"``, ``"group"`` or ``"layer"``: the heads whose scores are summed.

    Returns:
        ``[B, H, T, n]`` in fp64, ``n = T // l``; equal for heads that choose together.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    heads_per_choice = {"head": 1, "group": heads // kv_heads, "layer": heads}[share]
    found = torch.zeros(*q.shape[:3], q.shape[2] // length, dtype=torch.float64)
    for b in range(q.shape[0]):
        for first in range(0, heads, heads_per_choice):
            members = range(first, first + heads_per_choice)
            for c in range(found.shape[-1]):
                own = slice(c * length, (c + 1) * length)
                each = [
                    _against(q[b, h], q[b, h, own], k[b, h, own], v[b, h, own], rope, scale, score) for h in members
                ]
                # A chunk with several items has the score of its best item, by the sum over the heads.
                found[b, first : first + heads_per_choice, :, c] = torch.stack(each).sum(dim=0).amax(dim=-1)
    return found


def _against(q: Tensor, own_q: Tensor, own_k: Tensor, own_v: Tensor, rope: Rope, scale: float, score: str) -> Tensor:
    """The scores of one head's queries for the items of one chunk.

    Args:
        q: ``[T, D]``, the queries.
        own_q, own_k: ``[l, D]``, the queries and keys of the chunk.
        own_v: ``[l, Dv]``, its values.

    Returns:
        ``[T, items]`` in fp64; the number of items depends on ``score``.
    """
    if score == "representation":
        cos, sin = (x.double() for x in rope.table(torch.arange(len(own_q))))
        turned_q, turned_k = (
            turn(x[None, None], cos, sin)[0, 0] for turn, x in ((rope.rotate_q, own_q), (rope.rotate_k, own_k))
        )
        chunk_query = ((turned_q @ turned_k.T * scale).softmax(dim=-1) @ own_v).mean(dim=0)  # Eq 2
        items = ((chunk_query @ turned_k.T * scale).softmax(dim=-1) @ turned_k)[None]  # Eq 1
    elif score == "bounds":
        return torch.maximum(q * own_k.amin(dim=0), q * own_k.amax(dim=0)).sum(dim=-1, keepdim=True)
    elif score == "token_max":
        items = own_k
    else:
        parts = own_k.tensor_split(1 if score == "mean" else min(4, len(own_k)))
        items = torch.stack([part.mean(dim=0) for part in parts])
    return q @ items.T


def topk_chunks(
    scores: Tensor, *, dense_queries: int, length: int, count: int, local: int, first: bool = True, lowest: bool = False
) -> Tensor:
    """The chunks that each query chooses: ``[B, H, T, m]`` int64, ascending; -1 for the ``dense_queries``.

    ``scores`` is ``[B, H, T, n]``; ``m = count - local - first``.
    """
    batch, heads, total, _ = scores.shape
    chosen = torch.full((batch, heads, total, count - local - int(first)), -1)
    for b in range(batch):
        for h in range(heads):
            for i in range(dense_queries, total):
                rest = list(range(int(first), i // length - local + 1))
                rest.sort(key=lambda c: float(scores[b, h, i, c]), reverse=not lowest)
                chosen[b, h, i] = torch.tensor(sorted(rest[: chosen.shape[-1]]))
    return chosen


def slots(chosen: Tensor, *, dense_queries: int, length: int, local: int, first: bool = True) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` of LongHeads, ``[B, H, T, T]``: the kept chunks take consecutive slots in their order.

    ``chosen`` is ``[B, H, T, m]`` int64, chunks.
    """
    batch, heads, total, _ = chosen.shape
    keep = torch.zeros(batch, heads, total, total, dtype=torch.bool)
    rel = torch.zeros(batch, heads, total, total, dtype=torch.int64)
    for b in range(batch):
        for h in range(heads):
            for i in range(total):
                current = i // length
                kept = list(range(current + 1))
                if i >= dense_queries:
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
    """ESA's score ``f(m; c)`` of every query for every token (Eq 3), at the distance ``at`` under ``rope``.

    Args:
        q, k: ``[B, H, T, D]`` and ``[B, Hkv, T, D]``, unrotated.
        share: ``"head"``, ``"group"`` or ``"layer"``: the heads whose scores are combined.
        combine: ``"sum"`` or ``"max"``.
        rope: the rotation; None leaves queries and keys unrotated.
        at: the distance; 0 leaves queries and keys unrotated.

    Returns:
        ``[B, H, T, T]`` in fp64; equal for heads that choose together.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    if rope is not None and at:
        each = dots(q, k, torch.full((q.shape[2], k.shape[2]), at), rope)
    else:
        each = q.double() @ k.double().repeat_interleave(heads // kv_heads, dim=1).mT
    heads_per_choice = {"head": 1, "group": heads // kv_heads, "layer": heads}[share]
    grouped = each.unflatten(1, (-1, heads_per_choice))
    combined: Tensor = grouped.sum(dim=2) if combine == "sum" else grouped.amax(dim=2)
    return combined.repeat_interleave(heads_per_choice, dim=1)


def topk_tokens(
    scores: Tensor, query_chunks: ChunkRanges, *, initial: int, local: int, top_k: int, proximity: int = 1
) -> Tensor:
    """The tokens that each query chunk chooses (Eqs 4 and 8): ``[B, H, P, top_k]`` int64, ascending.

    ``scores`` is ``[B, H, T, T]``. Of tokens with equal scores the first ones are chosen.
    """
    batch, heads = scores.shape[:2]
    chosen = torch.zeros(batch, heads, len(query_chunks), top_k, dtype=torch.int64)
    for b in range(batch):
        for h in range(heads):
            for p, (a, z) in enumerate(query_chunks):
                middle = range(initial, a - local)
                f = scores[b, h, a:z, initial : a - local]
                best = (f - f.amax(dim=1, keepdim=True)).amax(dim=0).tolist()
                near = [max(best[max(n - proximity, 0) : n + proximity + 1]) for n in range(len(best))]
                ranked = sorted(middle, key=lambda m: near[m - initial], reverse=True)
                chosen[b, h, p] = torch.tensor(sorted(ranked[:top_k]))
    return chosen


def far_and_near(
    chosen: Tensor, query_chunks: ChunkRanges, total: int, *, initial: int, local: int, far: int
) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` of ESA, ``[B, H, T, T]``: initial and chosen tokens at ``far``, local ones at ``i - j``.

    ``chosen`` is ``[B, H, P, top_k]`` int64, tokens. Queries outside all query chunks keep all keys at their true
    distance.
    """
    i, j = torch.arange(total)[:, None], torch.arange(total)[None, :]
    keep, rel = ((x.expand(*chosen.shape[:2], -1, -1).clone()) for x in (j <= i, i - j))
    for p, (a, z) in enumerate(query_chunks):
        keep[:, :, a:z, : a - local] = False
        for b in range(chosen.shape[0]):
            for h in range(chosen.shape[1]):
                distant = torch.cat((torch.arange(initial), chosen[b, h, p]))
                keep[b, h, a:z, distant] = True
                rel[b, h, a:z, distant] = far
    return keep, rel


@states("Chunks")
class StatedChunks:
    """The selection of LongHeads; an ablation of the paper takes the chunks with the lowest scores."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        shape = {"length": own.size, "score": own.score, "share": own.share}
        scores = chunk_scores(text.q, text.k, text.v, text.rope, scale=text.scale, **shape)
        lowest = getattr(own, "pick", "best") == "lowest"
        sizes = {"length": own.size, "count": own.count, "local": own.local, "first": own.first}
        chunks = topk_chunks(scores, dense_queries=own.dense_queries, lowest=lowest, **sizes)
        return marked(chunks, text.length, own.size)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        keep, borders = torch.zeros(n, n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
        for i in range(n):
            if i >= own.dense_queries:
                borders[i] = (i // own.size - own.local + 1) * own.size
                keep[i, : own.size if own.first else 0] = True
            keep[i, borders[i] : i + 1] = True
        return keep, borders


@states("Tokens")
class StatedTokens:
    """The selection of ESA; an ablation takes the largest score of the heads that choose together, not the sum."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        combine = getattr(own, "combine", "sum")
        scores = token_scores(text.q, text.k, share=own.share, combine=combine, rope=text.rope, at=own.score_at)
        query_chunks = [(a, z) for a, z in query_chunks_of(own, text.length) if a >= own.dense_queries]
        sizes = {"initial": own.initial, "local": own.local, "top_k": own.top_k, "proximity": own.proximity}
        return mask_of_query_chunks(topk_tokens(scores, query_chunks, **sizes), query_chunks, text.length)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        return first_and_local(own, n)


def query_chunks_of(own: Any, n: int) -> list[tuple[int, int]]:
    """The query chunks ``(first, one past the last)`` of one call over ``n`` tokens, more than ``dense_queries``."""
    edges = sorted({own.dense_queries, n, *range(0, n, own.query_chunk)})
    return list(pairwise(edges))


def mask_of_query_chunks(tokens: Tensor, query_chunks: ChunkRanges, n: int) -> Tensor:
    """Convert the tokens ``[B, H, P, M]`` of query chunks to a mask ``[B, H, n, n]`` of their queries, bool."""
    chosen = torch.zeros(*tokens.shape[:2], n, n, dtype=torch.bool)
    for p, (a, z) in enumerate(query_chunks):
        chosen[:, :, a:z] = marked(tokens[:, :, p], n)[:, :, None]
    return chosen


def first_and_local(own: Any, n: int) -> tuple[Tensor, Tensor]:
    """``always`` of selections by query chunk: the first tokens, the local tokens before the chunk, and the chunk.

    Returns ``[N, N]`` bool and the borders ``[N]``, as ``KeptMask`` has them.
    """
    keep, borders = torch.ones(n, n, dtype=torch.bool).tril(), torch.zeros(n, dtype=torch.int64)
    for a, z in query_chunks_of(own, n):
        if a >= own.dense_queries:
            keep[a:z, own.initial : a - own.local] = False
            borders[a:z] = a - own.local
    return keep, borders
