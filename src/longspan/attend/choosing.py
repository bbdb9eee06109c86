"""The part of a selecting method that looks at queries and keys: score, choose, attend to what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.attend.merge import merge
from longspan.calibration import Calibration
from longspan.errors import CalibrationError
from longspan.index import BlockIndex, ChunkIndex, TokenIndex, exact_scores
from longspan.kernels.gathered import Impl, gathered_by_piece, gathered_by_row
from longspan.methods.base import Method
from longspan.methods.esa import ESA
from longspan.methods.infllm import InfLLM
from longspan.methods.longheads import LongHeads
from longspan.methods.selecting import Selecting
from longspan.rope import Rope, Table
from longspan.selection.blocks import Blocks
from longspan.selection.chunks import Chunks
from longspan.selection.middle import Middle
from longspan.selection.tokens import Tokens

_SCORES = 1 << 25  # scores held at once (fp32: 128 MB)


@dataclass
class Choices:
    """What layers of one forward share: cos and sin of queries, and the first layer's choice where that is fixed."""

    turns: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)
    units: dict[Any, tuple[int, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a batch with equal padding, in one layer and one call.

    Attributes:
        q: ``[B, H, T, D]``, unrotated; queries ``start : stop`` of each row's own count.
        keys: ``[B, Hkv, N, D]`` at the positions that chosen keys are stored at.
        values: ``[B, Hkv, N, Dv]``.
        batch: which rows of the layer's index they are.
        padding: how many padding tokens the index holds before theirs.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    batch: slice
    start: int
    stop: int
    rope: Rope
    scale: float
    softcap: float | None
    layer: int
    padding: int


class Chooser:
    """Chooses by one method, for all layers of a model."""

    def __init__(self, method: Selecting, window: int, impl: Impl, calibration: Calibration | None) -> None:
        self.method, self.window, self.impl, self.calibration = method, window, impl, calibration
        self.selection, self.positions = method.chosen_from, method.seen_at
        # By the angles, of which dynamic ones live no longer than a step.
        self._tables: WeakKeyDictionary[Table, dict[torch.device, tuple[Tensor, Tensor]]] = WeakKeyDictionary()
        self.fixed = isinstance(method, LongHeads) and method.fix_layers

    def index(self, layer: int) -> ChunkIndex | TokenIndex | BlockIndex | None:
        """A new index for a layer's store; None where scores come from the keys alone."""
        method, calibration = self.method, self.calibration
        if isinstance(method, InfLLM):
            assert method.representatives is not None
            return BlockIndex(method.chosen_from, self.window, method.representatives)
        if isinstance(method, LongHeads):
            reduced = None
            if calibration is not None and method.score == "token_max":
                reduced = calibration.heads[layer].theta_q, calibration.heads[layer].theta_k
            return ChunkIndex(method.chosen_from.size, method.score, method.share, reduced)
        if calibration is None or not isinstance(self.selection, Tokens):
            return None
        return TokenIndex(calibration.layers[layer].theta_q, calibration.layers[layer].theta_k)

    def add(self, out: Tensor, lse: Tensor, rows: Rows, index: Any, shared: Choices) -> None:
        """Merge what queries chose into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place."""
        if isinstance(self.selection, Middle):
            if self.method.selects_in(rows.layer):
                self._middle(out, lse, rows)
            return
        first = max(rows.start, self.window)
        if first >= rows.stop:
            return
        add = self._chunks if isinstance(self.selection, Chunks) else self._pieces
        add(out, lse, rows, first, index, shared)

    def _chunks(self, out: Tensor, lse: Tensor, rows: Rows, first: int, index: Any, shared: Choices) -> None:
        selection, batch, heads = self.selection, rows.q.shape[0], rows.q.shape[1]
        assert isinstance(selection, Chunks)
        full, seed = rows.stop // selection.size, selection.seed
        step = max(1, _SCORES // (batch * heads * full * index.parts))
        for r0 in range(first, rows.stop, step):
            r1 = min(r0 + step, rows.stop)
            part = slice(r0 - rows.start, r1 - rows.start)
            i = torch.arange(r0, r1)
            count = min(full, (r1 - 1) // selection.size)
            key = rows.batch.start, r0
            if self.fixed and key in shared.units and shared.units[key][0] != rows.layer:
                units = shared.units[key][1].to(rows.q.device)
            else:
                if selection.pick == "random":
                    sharing = {"head": heads, "group": rows.keys.shape[1], "layer": 1}[selection.share]
                    scores = lse.new_zeros(1).expand(batch, sharing, r1 - r0, count)
                    selection = replace(selection, seed=seed + 1_009 * rows.layer)  # each layer draws its own
                else:
                    scores = index.scores(rows.q[:, :, part], rows.batch, count, rows.rope, rows.keys.shape[1])
                units = selection.choose(scores, i)
                if self.fixed:
                    shared.units[key] = rows.layer, units
            found = gathered_by_row(
                rows.q[:, :, part],
                rows.keys,
                rows.values,
                units,
                selection.size,
                self.positions.chosen(i, units, selection.local).to(rows.q.device),
                self._window_table(rows),
                rows.rope,
                scale=rows.scale,
                softcap=rows.softcap,
                impl=self.impl,
            )
            merge(out[:, :, part], lse[:, :, part], *found)

    def _window_table(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """cos and sin of every position in the window."""
        made = self._tables.setdefault(rows.rope.table, {})
        if rows.q.device not in made:
            made[rows.q.device] = _turn(rows, torch.arange(self.window))
        return made[rows.q.device]

    def _middle(self, out: Tensor, lse: Tensor, rows: Rows) -> None:
        selection = self.selection
        assert isinstance(selection, Middle)
        step = max(1, _SCORES // (rows.q.shape[0] * rows.q.shape[1] * rows.stop))
        for r0, r1 in selection.runs(rows.start, rows.stop, step):
            part = slice(r0 - rows.start, r1 - rows.start)
            q, i = rows.q[:, :, part], torch.arange(r0, r1)
            cos, sin = self._window_table(rows)
            far = self.positions.chosen(i, i[None, None, :, None], 0)[:, 0].to(q.device)
            keys = rows.keys[:, :, selection.initial : selection.stop(r1 - 1)]
            scores = exact_scores(rows.rope.turn_q(q, cos[far], sin[far]), keys, "head", "sum")
            tokens = selection.choose(scores, i)
            found = gathered_by_row(
                q,
                rows.keys,
                rows.values,
                tokens,
                1,
                self.positions.chosen(i, tokens, 0).to(q.device),
                (cos, sin),
                rows.rope,
                scale=rows.scale,
                softcap=rows.softcap,
                impl=self.impl,
            )
            merge(out[:, :, part], lse[:, :, part], *found)

    def _pieces(self, out: Tensor, lse: Tensor, rows: Rows, first: int, index: Any, shared: Choices) -> None:
        selection = self.selection
        assert isinstance(selection, Tokens | Blocks)
        for r0, r1 in selection.pieces(first, rows.stop, self.window):
            part = slice(r0 - rows.start, r1 - rows.start)
            q = rows.q[:, :, part]
            if isinstance(selection, Blocks):
                scores = index.scores(q, rows.batch, selection.candidates(r0), rows.rope)
            else:
                scores = self._token_scores(q, rows, index, *selection.candidates(r0))
            tokens = selection.choose(scores) + selection.initial
            here = rows.batch.start, r0, rows.rope.table, rows.q.device
            if here not in shared.turns:
                turn = _turn(rows, self.positions.chosen(torch.arange(r0, r1), tokens, 0)[:, 0])
                shared.turns[here] = turn
            found = gathered_by_piece(
                q,
                rows.keys,
                rows.values,
                tokens,
                shared.turns[here],
                rows.rope,
                scale=rows.scale,
                softcap=rows.softcap,
                impl=self.impl,
            )
            merge(out[:, :, part], lse[:, :, part], *found)

    def _token_scores(self, q: Tensor, rows: Rows, index: TokenIndex | None, low: int, high: int) -> Tensor:
        """``f(m; c)`` of the queries of a piece for the middle tokens ``low : high``: ``[B, S, T, M]``."""
        method, selection = self.method, self.selection
        assert isinstance(method, ESA) and isinstance(selection, Tokens)
        cos, sin = (x.to(q.device) for x in rows.rope.table(torch.full((q.shape[2],), method.score_at)))
        q = rows.rope.turn_q(q, cos, sin) if method.score_at or rows.rope.norm_q is not None else q
        if index is None:
            return exact_scores(q, rows.keys[:, :, low:high], selection.share, selection.combine)
        summed = q.unflatten(1, (rows.keys.shape[1], -1)).sum(dim=2)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return index.scores(summed, rows.batch, rows.padding + low, rows.padding + high).to(wide)


def _turn(rows: Rows, positions: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # kept for other layers
        cos, sin = (x.to(rows.q.device) for x in rows.rope.table(positions))
    return cos, sin


def uses_calibration(method: Method) -> bool:
    """Whether a method's scores can be reduced ones."""
    return isinstance(method, ESA) or (isinstance(method, LongHeads) and method.score == "token_max")


def check_calibration(method: Method, calibration: Calibration | None) -> None:
    """Raise ``CalibrationError`` unless a calibration is there where one is asked for, fits, and will be used."""
    wanted = getattr(method, "reduced", None)
    if calibration is None:
        if wanted is not None:
            raise CalibrationError(
                f"{method.name} is to score keys reduced to {wanted}, and no calibration was given; make one with "
                "longspan.calibrate and pass calibration=, or leave reduced out for exact scores"
            )
        return
    if not uses_calibration(method):
        raise CalibrationError(
            f"{method.name} has no use for a calibration (esa has, and longheads with score='token_max'); leave "
            "calibration out"
        )
    if isinstance(method, ESA) and (method.share, method.combine, method.score_at) != ("layer", "sum", 0):
        raise CalibrationError(
            "reduced scores are those of all heads of a layer, summed and unrotated; leave calibration out for "
            f"share={method.share!r}, combine={method.combine!r}, score_at={method.score_at}"
        )
    if wanted is not None and calibration.reduced != wanted:
        raise CalibrationError(f"{method.name} has reduced={wanted} and the calibration {calibration.reduced}")
