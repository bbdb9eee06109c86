"""The choices of InfLLM and of LM-Infinite with middle tokens, query by query, as their papers define them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.oracle.attention import dots
from longspan.oracle.choices import ChunkRanges, first_and_local, mask_of_query_chunks, query_chunks_of
from longspan.oracle.statements import Inputs, marked, states
from longspan.rope import Rope


def topk_blocks(
    q: Tensor,
    k: Tensor,
    rope: Rope,
    query_chunks: ChunkRanges,
    *,
    dense_queries: int,
    initial: int,
    local: int,
    block: int,
    blocks: int,
    representatives: int,
) -> Tensor:
    """The tokens of the blocks that each query chunk of InfLLM after the first ``dense_queries`` queries chooses.

    Args:
        q, k: ``[B, H, T, D]`` and ``[B, Hkv, T, D]``, unrotated.
        query_chunks: all query chunks as ``(first, one past the last)``, those of the ``dense_queries`` too.

    Returns:
        ``[B, H, P, blocks · block]`` int64.
    """
    batch, heads, total, _ = q.shape
    i, j = torch.arange(total)[:, None], torch.arange(total)[None, :]
    near = dots(q, k, i - j, rope).sum(dim=1)
    bare = (q.double() @ k.double().repeat_interleave(heads // k.shape[1], dim=1).mT).sum(dim=1)
    sums, times = torch.zeros(batch, total, dtype=torch.float64), torch.zeros(total, dtype=torch.float64)
    chosen = []
    for a, z in query_chunks:
        if a >= dense_queries:
            score = sums / times.clamp(min=1)
            own = []
            for b in range(batch):
                worth = {}
                for first in range(initial, a - local - block + 1, block):
                    members = sorted(range(first, first + block), key=lambda m: -float(score[b, m]))
                    worth[first] = float(bare[b, a:z, members[:representatives]].sum())
                best = sorted(sorted(worth, key=lambda first: -worth[first])[:blocks])
                own.append([first + n for first in best for n in range(block)])
            chosen.append(torch.tensor(own))
        for query in range(a, z):  # the tokens from max(a - local, 0) up to the query are local to it
            here = slice(max(a - local, 0), query)
            sums[:, here] += near[:, query, here]
            times[here] += 1
    return torch.stack(chosen, dim=1)[:, None].expand(-1, heads, -1, -1)


def topk_middle(q: Tensor, k: Tensor, rope: Rope, *, sinks: int, recent: int, top_k: int, distance: int) -> Tensor:
    """The middle tokens that each query of LM-Infinite chooses.

    Args:
        q, k: ``[B, H, T, D]`` and ``[B, Hkv, T, D]``, unrotated.
        distance: the relative position of all tokens in the logits.

    Returns:
        ``[B, H, T, top_k]`` int64, ascending, padded with -1.
    """
    batch, heads, total, _ = q.shape
    logits = dots(q, k, torch.full((total, total), distance), rope)
    chosen = torch.full((batch, heads, total, top_k), -1)
    for b in range(batch):
        for h in range(heads):
            for i in range(sinks + recent, total):
                middle = range(sinks, i - recent + 1)
                best = sorted(middle, key=lambda j: float(logits[b, h, i, j]), reverse=True)[:top_k]
                chosen[b, h, i, : len(best)] = torch.tensor(sorted(best))
    return chosen


def sinks_recent_and_middle(
    chosen: Tensor, *, sinks: int, recent: int, cap: int, distance: int
) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` of LM-Infinite, ``[B, H, T, T]``: first and recent tokens, and chosen ones at ``distance``.

    ``chosen`` is ``[B, H, T, top_k]`` int64, padded with -1.
    """
    batch, heads, total, _ = chosen.shape
    i, j = torch.arange(total)[:, None], torch.arange(total)[None, :]
    always = ((j < sinks) | (i - j < recent)) & (j <= i)
    keep, rel = (x.expand(batch, heads, -1, -1).clone() for x in (always, (i - j).clamp(max=cap)))
    for b in range(batch):
        for h in range(heads):
            for row in range(total):
                own = [token for token in chosen[b, h, row].tolist() if token >= 0]
                keep[b, h, row, own] = True
                rel[b, h, row, own] = distance
    return keep, rel


@states("Blocks")
class StatedBlocks:
    """The selection of InfLLM."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        query_chunks = query_chunks_of(own, text.length)
        sizes = {"dense_queries": own.dense_queries, "initial": own.initial, "local": own.local, "block": own.size}
        counts = {"blocks": own.blocks, "representatives": own.representatives}
        tokens = topk_blocks(text.q, text.k, text.rope, query_chunks, **sizes, **counts)
        return mask_of_query_chunks(tokens, [(a, z) for a, z in query_chunks if a >= own.dense_queries], text.length)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        return first_and_local(own, n)


@states("TopKTokens")
class StatedMiddle:
    """The selection of LM-Infinite with middle tokens."""

    @staticmethod
    def chosen(own: Any, text: Inputs) -> Tensor:
        sizes = {"sinks": own.initial, "recent": own.recent, "top_k": own.top_k, "distance": own.score_at}
        return marked(topk_middle(text.q, text.k, text.rope, **sizes), text.length)

    @staticmethod
    def always(own: Any, n: int) -> tuple[Tensor, Tensor]:
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        return ((j < own.initial) | (i - j < own.recent)) & (j <= i), (i[:, 0] - own.recent + 1).clamp(min=0)
