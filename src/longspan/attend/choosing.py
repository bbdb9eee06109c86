"""The part of a selecting method that looks at queries and keys: score, choose, attend to what was chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.attend.observing import Observer
from longspan.attend.pieces import add_pieces
from longspan.attend.rows import Choices, Rows
from longspan.calibration import Calibration
from longspan.index import BlockIndex, ChunkIndex, TokenIndex, exact_asked, exact_scores
from longspan.kernels.gathered import Impl, PerPiece, PerRow, gather_into
from longspan.kernels.scores import worth
from longspan.methods.esa import ESA
from longspan.methods.infllm import InfLLM
from longspan.methods.longheads import LongHeads
from longspan.methods.selecting import Selecting
from longspan.positions.selected import TokenMap, UnitMap
from longspan.rope import Rope, Table, Turn, turn
from longspan.selection.blocks import Blocks
from longspan.selection.chunks import Chunks
from longspan.selection.middle import Middle
from longspan.selection.pieces import ByPiece
from longspan.selection.tokens import Tokens

_SCORES = 1 << 25  # scores held at once (fp32: 128 MB)


class Chooser:
    """Chooses by one method, for all layers of a model."""

    def __init__(self, method: Selecting, window: int, impl: Impl, calibration: Calibration | None) -> None:
        self.method, self.window, self.impl, self.calibration = method, window, impl, calibration
        self.selection, self.positions = method.chosen_from, method.seen_at(window)
        # By the angles, of which dynamic ones live no longer than a step.
        self._tables: WeakKeyDictionary[Table, dict[torch.device, Turn]] = WeakKeyDictionary()
        self.fixed = isinstance(method, LongHeads) and method.fix_layers
        self.observer: Observer | None = None  # sees what is chosen, where somebody records it

    def index(self, layer: int, rope: Rope) -> ChunkIndex | TokenIndex | BlockIndex | None:
        """A new index for a layer's store; None where scores come from the keys alone."""
        method, calibration = self.method, self.calibration
        if isinstance(method, InfLLM):
            assert method.representatives is not None
            return BlockIndex(method.chosen_from, self.window, method.representatives)
        if isinstance(method, LongHeads):
            reduced = None
            if calibration is not None and method.score == "token_max":
                maps = calibration.heads[layer]
                reduced = rope.pair(maps.theta_q), rope.pair(maps.theta_k)
            return ChunkIndex(method.chosen_from.size, method.score, method.share, reduced, rope.order)
        if calibration is None or not isinstance(self.selection, Tokens):
            return None
        maps = calibration.layers[layer]
        by_head = (x.unflatten(-1, (-1, rope.head_dim)) for x in (maps.theta_q, maps.theta_k))
        return TokenIndex(*(rope.pair(x).flatten(-2) for x in by_head))

    def add(self, out: Tensor, lse: Tensor, rows: Rows, index: Any, shared: Choices) -> None:
        """Merge what queries chose into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place."""
        if not self.method.selects_in(rows.layer):
            return
        chosen: PerRow | PerPiece
        first = max(rows.start, self.method.first_choosing(self.window))
        if first >= rows.stop:
            return
        if isinstance(self.selection, ByPiece):
            runs = self.selection.pieces(first, rows.stop, self.window)
            runs = runs[add_pieces(self, out, lse, rows, runs, index, shared) :]
        else:
            runs = self.selection.runs(first, rows.stop, self._at_once(rows, index))
        for r0, r1 in runs:
            whole, part = (r0, r1) == (rows.start, rows.stop), rows.part(r0, r1)
            if isinstance(self.selection, ByPiece):
                chosen = self._by_piece(rows, r0, r1, index, shared)
            else:
                chosen = self._by_row(rows, r0, r1, index, shared)
            own = (out, lse) if whole else (out[:, :, part], lse[:, :, part])
            gather_into(*own, chosen, self.impl)

    def _by_row(self, rows: Rows, r0: int, r1: int, index: Any, shared: Choices) -> PerRow:
        """What queries ``r0 : r1`` chose, each for itself."""
        selection, q = self.selection, rows.between(r0, r1)
        assert isinstance(selection, Chunks | Middle)
        key, scores = (rows.batch.start, r0), None
        if self.fixed and key in shared.units and shared.units[key][0] != rows.layer:
            units = shared.units[key][1].to(q.device)
        else:
            if isinstance(selection, Middle):
                scores = self._middle_scores(selection, q, r1, rows)
                units = selection.choose(scores, torch.arange(r0, r1))
            else:
                units, scores = self._choose_chunks(selection, r0, r1, q, rows, index)
            if self.fixed:
                shared.units[key] = rows.layer, units
        if self.observer is not None and self.observer.wants(r1, rows.stop):
            self.observer.by_row(rows, r0, r1, selection, units, scores)
        positions = self._positions(r0, r1, units, shared).to(q.device)
        return PerRow(
            q=q,
            keys=rows.keys,
            v=rows.values,
            units=units,
            size=selection.size,
            positions=positions,
            table=self.window_table(rows.rope.table, rows.q.device),
            rope=rows.rope,
            scale=rows.scale,
            softcap=rows.softcap,
        )

    def _by_piece(self, rows: Rows, r0: int, r1: int, index: Any, shared: Choices) -> PerPiece:
        """What queries ``r0 : r1`` chose together."""
        selection, q = self.selection, rows.between(r0, r1)
        assert isinstance(selection, Tokens | Blocks)
        if isinstance(selection, Blocks):
            decided = index.scores(q, rows.batch, selection.candidates(r0), rows.rope)
        else:
            decided = self._worth(*selection.candidates(r0), rows, r0, r1, index, shared)
        tokens = selection.choose(decided) + selection.initial
        if self.observer is not None and self.observer.wants(r1, rows.stop):

            def ranked() -> Tensor:
                if isinstance(selection, Blocks):
                    return decided
                # What is kept anyway has a score as well, which nobody asks for but an observer.
                low, high = selection.candidates(r0)
                parts = ((low, high), (0, low), (high, r0))
                return selection.ranked(*(self._token_scores(a, b, rows, r0, r1, index, shared) for a, b in parts))

            self.observer.by_piece(rows, r0, r1, selection, tokens, ranked)
        return self.seen_by_piece(rows, r0, r1, tokens, shared)

    def seen_by_piece(self, rows: Rows, r0: int, r1: int, tokens: Tensor, shared: Choices) -> PerPiece:
        """How queries ``r0 : r1`` see tokens ``[B, S, M]``."""
        selection, i = cast(ByPiece, self.selection), torch.arange(r0, r1)
        seen = cast(TokenMap, self.positions).tokens(i, tokens, selection.head, r0 - selection.local)
        return PerPiece(
            q=rows.between(r0, r1),
            keys=rows.keys,
            v=rows.values,
            tokens=tokens,
            turns=tuple(shared.turn(rows, at, "queries", r0, r1, n) for n, at in enumerate(seen.q_pos)),
            ends=seen.ends,
            # Stored at 0 they have the angles' factor already.
            key_turn=None if seen.k_pos is None else shared.turn(rows, seen.k_pos, "keys", scaled=False),
            rope=rows.rope,
            scale=rows.scale,
            softcap=rows.softcap,
        )

    def _positions(self, r0: int, r1: int, units: Tensor, shared: Choices) -> Tensor:
        """Where queries ``r0 : r1`` see their units from; layers share what depends on the queries alone."""
        seen, key = cast(UnitMap, self.positions), (r0, r1, units.shape[-1])
        if key in shared.positions:
            return shared.positions[key]
        found = seen.units(torch.arange(r0, r1), units, self.selection.size)  # type: ignore[union-attr]
        if found.dim() == 2:
            shared.positions[key] = found
        return found

    def _at_once(self, rows: Rows, index: Any) -> int:
        """How many queries may be scored at once."""
        columns = rows.stop
        if isinstance(self.selection, Chunks):
            columns = self.selection.candidates(rows.stop) * index.parts
        return max(1, _SCORES // max(rows.q.shape[0] * rows.q.shape[1] * columns, 1))

    def _choose_chunks(
        self, selection: Chunks, r0: int, r1: int, q: Tensor, rows: Rows, index: ChunkIndex
    ) -> tuple[Tensor, Tensor | None]:
        """The chunks that queries ``r0 : r1`` choose, and the scores that decided: none where chance did."""
        heads, kv_heads, count = q.shape[1], rows.keys.shape[1], selection.candidates(r1)
        i = torch.arange(r0, r1)
        if selection.pick != "random":
            scores = index.scores(q, rows.batch, count, rows.rope, kv_heads)
            return selection.choose(scores, i), scores
        sharing = {"head": heads, "group": kv_heads, "layer": 1}[selection.share]
        none = torch.zeros(1, device=q.device).expand(q.shape[0], sharing, len(i), count)
        # Each layer draws its own.
        return replace(selection, seed=selection.seed + 1_009 * rows.layer).choose(none, i), None

    def _middle_scores(self, selection: Middle, q: Tensor, stop: int, rows: Rows) -> Tensor:
        """The logits ``[B, H, T, M]`` of the tokens from ``initial`` on, at the distance that they are seen at."""
        far = cast(UnitMap, self.positions).units(torch.arange(q.shape[2]), torch.empty(1), 1)[:, 0]
        cos, sin = (x[far.to(q.device)] for x in self.window_table(rows.rope.table, rows.q.device))
        assert rows.scored is not None
        keys = rows.scored[:, :, selection.initial : selection.stop(stop - 1)]
        return exact_scores(rows.rope.turn_q(q, cos, sin), keys, "head", "sum")

    def _worth(
        self, low: int, high: int, rows: Rows, r0: int, r1: int, index: TokenIndex | None, shared: Choices
    ) -> Tensor:
        """``F(m)`` (Eq 4) of the tokens ``low : high`` for queries ``r0 : r1``: ``[B, S, M]``."""
        asked, keys, together = self.asked(rows, r0, r1, index, shared)
        return worth(asked.to(keys.device), keys[:, :, low:high], together=together).to(asked.device)

    def asked(
        self, rows: Rows, r0: int, r1: int, index: TokenIndex | None, shared: Choices
    ) -> tuple[Tensor, Tensor, int]:
        """Queries ``r0 : r1`` as tokens are scored by them, what they meet, and how many choose as one."""
        q, selection = self._asking(rows, r0, r1, index, shared), self.selection
        assert isinstance(selection, Tokens)
        if index is not None:
            return index.asked(q), index.entries[rows.batch, :, rows.padding :], 1
        assert rows.scored is not None
        asked, together = exact_asked(q, rows.keys.shape[1], selection.share, selection.combine)
        return asked, rows.scored, together

    def _token_scores(
        self, low: int, high: int, rows: Rows, r0: int, r1: int, index: TokenIndex | None, shared: Choices
    ) -> Tensor:
        """``f(m; c)`` of the same: ``[B, S, T, M]``."""
        q, selection = self._asking(rows, r0, r1, index, shared), self.selection
        assert isinstance(selection, Tokens)
        if index is not None:
            return index.scores(q, rows.batch, rows.padding + low, rows.padding + high)
        assert rows.scored is not None
        return exact_scores(q, rows.scored[:, :, low:high], selection.share, selection.combine)

    def _asking(self, rows: Rows, r0: int, r1: int, index: TokenIndex | None, shared: Choices) -> Tensor:
        """Queries ``r0 : r1`` as tokens are scored by them; for an index those of a group summed."""
        q = rows.between(r0, r1)
        at = self.method.score_at if isinstance(self.method, ESA) else 0
        if at or rows.rope.norm_q is not None:
            q = rows.rope.turn_q(q, *shared.turn(rows, torch.full((r1 - r0,), at), "scores", r1 - r0))
        elif index is None and rows.rope.table.factor != 1.0:
            # The keys at 0 have the angles' factor; unrotated, q · k has none.
            cos, sin = shared.turn(rows, torch.zeros(r1 - r0, dtype=torch.int64), "bare", r1 - r0, scaled=False)
            q = rows.rope.turn_q(q, cos / rows.rope.table.factor, sin)
        return q if index is None else q.unflatten(1, (rows.keys.shape[1], -1)).sum(dim=2)

    def window_table(self, table: Table, device: torch.device) -> Turn:
        """cos and sin of every position in the window."""
        made = self._tables.setdefault(table, {})
        if device not in made:
            made[device] = turn(table, torch.arange(self.window), device)
        return made[device]
