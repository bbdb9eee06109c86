"""Tokens chosen by all queries of a query chunk together: ESA's selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from longspan.bands import Origin
from longspan.calibration import Calibration
from longspan.choosing.by_query_chunk import ByQueryChunk
from longspan.choosing.cost import LayerSizes, UnitCost
from longspan.choosing.own import says_itself
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import QUERIES_AT_ONCE, SCORES_AT_ONCE, Chosen, See, Seen, Selector
from longspan.choosing.token_index import TokenIndex, summed_queries
from longspan.kernels import cpu
from longspan.kernels.decode import ChosenPositions, ScoreSpec
from longspan.kernels.gathered import Impl, PerQueryChunk, gather_into
from longspan.kernels.scores import dot_scores, recorded_token_scores, relative_scores, token_scores, triton
from longspan.kernels.topk import masked_topk, max_nearby, topk
from longspan.rope import Rope, Table
from longspan.terms import Share, head_sets

_KEYS = 32  # for so many keys, or more, a GPU holds the best score of a query


@dataclass(frozen=True)
class Tokens(ByQueryChunk):
    """The first tokens, ``top_k`` chosen ones, and the ``local`` tokens before a query chunk with that chunk.

    A query chunk ends at each multiple of ``query_chunk`` and at the end of each call; its queries choose together.

    Args:
        initial: ``lI``, first tokens that are always kept.
        local: ``lL``, tokens before the query chunk that are always kept.
        top_k: ``k``, chosen of those between.
        query_chunk: ``lC``.
        proximity: ``ε`` of Eq 8: a token takes the largest score within ``ε`` of it.
        share: which heads choose together: those of the layer, the group of a key head, or every query head by itself.
        score_at: the distance at which scores see their tokens; 0 is unrotated.
        dense_queries: the first queries, which keep every key: ``L``, or fewer.
    """

    initial: int
    local: int
    top_k: int
    query_chunk: int
    proximity: int = 1
    share: Share = "layer"
    score_at: int = 0
    dense_queries: int = 0

    size = 1
    scored_keys = Origin()
    in_kernels = True

    @property
    def chosen(self) -> int:
        """How many tokens a query chunk chooses."""
        return self.top_k

    def selector(self, layer: int, rope: Rope, calibration: Calibration | None) -> Selector:
        return TokenSelector(self) if calibration is None else ReducedTokenSelector(self, layer, rope, calibration)

    def unit_cost(self, layer: LayerSizes, reduced: int | None) -> UnitCost:
        if reduced is not None:
            entry = reduced * layer.itemsize
            return UnitCost(entry, entry, reduced)
        products = layer.key_dim * (layer.heads if self.share == "head" else layer.kv_heads)
        return UnitCost(0, layer.kv_heads * layer.key_dim * layer.itemsize, products)

    def choose(self, scores: Tensor) -> Tensor:
        """The tokens that a query chunk chooses among its candidates, in ascending order.

        ``F'(j) = max F(m)`` within ``ε`` of ``j`` (Eq 8).

        Args:
            scores: ``F`` of each candidate (Eq 4), ``[B, S, M]``.

        Returns:
            ``[B, S, top_k]`` int64.
        """
        # Neighbours share their largest score, so ties are common; the first tokens win them, in every call alike.
        return topk(scores, self.top_k, tie=self.tie(scores.dtype), near=self.proximity) + self.initial

    def choose_recorded(self, scores: Tensor, stop: Tensor) -> Tensor:
        """The same of ``F`` ``[B, S, N]`` of all tokens, by operations that never wait.

        The candidates end at ``stop`` ``[1]`` int64, which is on the scores' device.
        """
        tie = self.tie(scores.dtype)
        return masked_topk(scores, self.top_k, tie=tie, near=self.proximity, start=self.initial, stops=stop)

    def tie(self, dtype: torch.dtype) -> float:
        """The difference within which scores tie, in parts of the largest.

        Unrotated keys of equal tokens are equal in the first layer, and their scores differ by rounding alone.
        """
        return 16 * torch.finfo(dtype).eps

    def unrecordable_reason(self) -> str | None:
        return None if says_itself(self, "in_kernels") else super().unrecordable_reason()

    def ranked(self, scores: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """F' of all tokens before a query chunk, for observers: ``choose`` needs that of the candidates alone.

        Tokens that are kept anyway are compared with the candidates' largest, and take the largest of their neighbours.

        Args:
            scores: ``[B, S, T, M]``, f of each query of the query chunk for each candidate.
            before, after: the same for the tokens before and after those.

        Returns:
            ``[B, S, N]``.
        """
        most = scores.amax(dim=-1, keepdim=True)
        parts = [(part - most).amax(dim=-2) for part in (before, scores, after)]
        return torch.cat([max_nearby(part, self.proximity) for part in parts], dim=-1)


class TokenSelector(Selector):
    """Scores a layer's tokens by the stored keys: ``f(m; c) = Σ_h q_h · k_h`` over the heads that choose together."""

    sums_over_ranks = in_kernels = True

    def __init__(self, selection: Tokens) -> None:
        self.selection = selection

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        low, high = self.selection.initial, r0 - self.selection.local  # the candidates
        decided = self._decided(low, high, queries, r0, r1)

        def ranked() -> Tensor:
            # Tokens that are kept anyway have a score as well, which only an observer reads.
            parts = ((low, high), (0, low), (high, r0))
            return self.selection.ranked(*(self.token_scores(a, b, queries, r0, r1) for a, b in parts))

        return Chosen(self.selection.choose(decided), ranked)

    def choose_recorded(self, queries: QueryBlock, stop: Tensor) -> Tensor:
        scores = recorded_token_scores(*self.form(queries, queries.start, queries.stop), self.selection.initial, stop)
        return self.selection.choose_recorded(scores, stop)

    def _decided(self, low: int, high: int, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        """``F`` of the candidates ``low : high`` for the queries ``r0 : r1`` (Eq 4), ``[B, S, M]``."""
        if self.across is not None and self.thetas is None:  # f is a sum over ranks, and F is not
            return relative_scores(self.token_scores(low, high, queries, r0, r1))
        q, keys = self.form(queries, r0, r1)
        return token_scores(q.to(keys.device), keys[:, :, low:high]).to(q.device)

    def form(self, queries: QueryBlock, r0: int, r1: int) -> tuple[Tensor, Tensor]:
        """Queries ``r0 : r1`` ``[B, S, T, C, D']`` as ``token_scores`` takes them, and their keys ``[B, C, N, D']``."""
        assert queries.scored is not None
        q = self.rotated(queries, r0, r1)
        return summed_queries(q, queries.keys.shape[1], self.selection.share), queries.scored

    def token_scores(self, low: int, high: int, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        """``f(m; c)`` of the tokens ``low : high`` and the queries ``r0 : r1``: ``[B, S, T, M]``."""
        q, keys = self.form(queries, r0, r1)
        scores = dot_scores(q, keys[:, :, low:high])
        return scores if self.thetas is not None else self.over_ranks(scores)

    def rotated(self, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        """Queries ``r0 : r1`` ``[B, H, T, D]`` at the distance at which scores see their tokens."""
        q, at = queries.between(r0, r1), self.selection.score_at
        if at or queries.rope.norm_q is not None:
            return queries.rotated(r0, r1, at)
        if queries.rope.table.factor == 1.0:
            return q
        # The keys at 0 have the angles' factor; unrotated, q · k has none.
        cos, sin = queries.cos_sin(torch.zeros(r1 - r0, dtype=torch.int64), "bare", r1 - r0, scaled=False)
        return queries.rope.rotate_q(q, cos / queries.rope.table.factor, sin)

    def add_many(
        self,
        out: Tensor,
        lse: Tensor,
        queries: QueryBlock,
        runs: Sequence[tuple[int, int]],
        see: See,
        seen: Seen,
        impl: Impl = "auto",
    ) -> int:
        """Query chunks that score, choose and attend together; shapes as for ``Selector.add_many``."""
        selection, done = self.selection, 0
        sets = head_sets(selection.share, queries.q.shape[1], queries.keys.shape[1])
        at_once, fewest = self._at_once(queries, sets, impl)
        nothing = torch.empty(queries.q.shape[0], sets, selection.top_k, dtype=torch.int64, device="cpu")
        while len(runs) - done >= fewest > 1:
            batch = runs[done : done + at_once]
            r0, r1 = batch[0][0], batch[-1][1]
            job = cast(PerQueryChunk, see(r0, r1, nothing))
            if job.ends is not None or job.key_cos_sin is not None:  # their positions are those of one query chunk
                return done
            edges = (*(a - r0 for a, _ in batch), r1 - r0)
            chunks = queries.chunks(edges, tuple(a - selection.local - selection.initial for a, _ in batch))
            q, keys = self.form(queries, r0, r1)
            keys = keys[:, :, selection.initial :]
            # Named for the interpreter's sake; reduced queries and keys may be of two dtypes, which Triton refuses.
            own_impl = impl if impl == "auto" or triton.unsupported_reason(q, keys) is None else "auto"
            scores = token_scores(q, keys, chunks=chunks, impl=own_impl)
            _, stops = chunks.on(scores.device)
            near, tie = selection.proximity, selection.tie(scores.dtype)
            chosen = topk(scores, selection.top_k, tie=tie, near=near, stops=stops, impl=impl) + selection.initial
            own = queries.in_call(r0, r1)
            gather_into(out[:, :, own], lse[:, :, own], replace(job, tokens=chosen, **queries.cut(edges)), impl)
            for n, run in enumerate(batch):
                seen(*run, Chosen(chosen[:, :, n], None))
            done += len(batch)
        return done

    def _at_once(self, queries: QueryBlock, sets: int, impl: Impl) -> tuple[int, int]:
        """How many query chunks run together, and the fewest that do."""
        size, scores = self.selection.query_chunk, queries.q.shape[0] * sets * queries.keys.shape[2]
        if impl == "auto" and queries.q.device.type == "cpu":
            at_once = min(QUERIES_AT_ONCE // size, SCORES_AT_ONCE // scores)
            # The last ones go one by one if they are too few to be spread over all threads.
            return at_once, min(at_once, 2 * torch.get_num_threads())
        # Scores are copied by top-k, and of a tile of keys every query has its best one.
        at_once = min(QUERIES_AT_ONCE // size, SCORES_AT_ONCE // (scores * (2 + size // _KEYS)))
        return at_once, min(at_once, 2)

    def in_one_call(self, table: Table) -> bool:
        # Stored keys have the factor of the angles, and scores have not.
        return says_itself(self, "in_kernels") and table.factor == 1.0 and not self.selection.score_at

    def entries_of(self, rows: slice, padding: int, keys: Tensor | None) -> Tensor:
        """``[B, Hkv', N, D']``: the keys that queries of the batch's ``rows`` are scored against."""
        assert keys is not None
        return keys

    @property
    def thetas(self) -> tuple[Tensor, Tensor] | None:
        """The maps that reduce a token's query and key, ``[d', Hkv · D]`` each; None for exact scores."""
        return None

    def scoring(
        self, rows: slice, padding: int, keys: Tensor | None, heads: int, kv_heads: int, positions: ChosenPositions
    ) -> ScoreSpec | None:
        selection = self.selection
        return ScoreSpec(
            entries=self.entries_of(rows, padding, keys),
            sums=selection.share != "head",
            rounds=True,
            choosing=head_sets(selection.share, heads, kv_heads),
            parts=kv_heads if self.thetas is None and selection.share == "layer" else 1,
            thetas=self.thetas,
            first=selection.initial,
            count=selection.top_k,
            tie=selection.tie(torch.float32),
            near=selection.proximity,
            size=1,
            positions=positions,
        )


class ReducedTokenSelector(TokenIndex, TokenSelector):
    """Scores a layer's tokens by reduced queries and keys, those of all heads summed."""

    sums_over_ranks = in_kernels = True
    keeps_slots = True

    def __init__(self, selection: Tokens, layer: int, rope: Rope, calibration: Calibration) -> None:
        maps = calibration.layers[layer]
        by_head = (x.unflatten(-1, (-1, rope.head_dim)) for x in (maps.theta_q, maps.theta_k))
        super().__init__(*(rope.pair(x).flatten(-2) for x in by_head))
        self.selection = selection

    def form(self, queries: QueryBlock, r0: int, r1: int) -> tuple[Tensor, Tensor]:
        entries = self.entries[queries.batch][:, :, queries.padding :]
        return self.reduced_queries(self.rotated(queries, r0, r1)), entries

    def rotated(self, queries: QueryBlock, r0: int, r1: int) -> Tensor:
        """Queries ``r0 : r1`` unrotated, summed over their key head's group: ``[B, Hkv, T, D]``."""
        q = queries.between(r0, r1) if queries.rope.norm_q is None else queries.rotated(r0, r1, 0)
        summed: Tensor = q.unflatten(1, (queries.keys.shape[1], -1)).sum(dim=2)
        return summed

    def in_one_call(self, table: Table) -> bool:
        return says_itself(self, "in_kernels") and self.theta_k.shape[0] % cpu.LANES == 0

    def entries_of(self, rows: slice, padding: int, keys: Tensor | None) -> Tensor:
        return self.entries[rows, :, padding:]

    @property
    def thetas(self) -> tuple[Tensor, Tensor]:
        return self.theta_q, self.theta_k
