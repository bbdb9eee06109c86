"""The contract of a decoding step in fp64, with torch's operations, one part of the softmax after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels.cpu.packing import CodedTokens
from longspan.kernels.decode.contract import BandRange, ScoreSpec
from longspan.kernels.softmax import bounded
from longspan.kernels.topk import topk
from longspan.rope import CosSin, Rope


@dataclass(kw_only=True, eq=False)
class DecodeReference:
    """Takes what ``DecodeKernel`` takes, in any dtype and on any device.

    Attributes:
        lse: ``[B, H, 1]`` fp64, the log-sum-exp of the last token.
        chosen: ``[B, S, m]`` int64, the units that it chose; None if it chose none.
    """

    keys: Sequence[Tensor]
    values: Tensor
    key_cos_sin: Sequence[CosSin]
    bands: Sequence[BandRange]
    rope: Rope
    order: Tensor | None
    heads: int
    scale: float
    softcap: float | None
    kept: Sequence[Tensor | None]
    scoring: ScoreSpec | None
    codes: Sequence[CodedTokens] | None = None

    def __post_init__(self) -> None:
        self.lse = torch.empty(self.values.shape[0], self.heads, 1, dtype=torch.float64)
        self.chosen: Tensor | None = None
        self._before = 0 if self.codes is None else self.codes[-1].codes.shape[2]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, at: int, row: int, kept: int, stop: int, seen: int) -> Tensor:
        """``[B, 1, H, Dv]`` of ``[B, H, 1, D]``, ``[B, Hkv, 1, D]`` and ``[B, Hkv, 1, Dv]``; see ``DecodeKernel``."""
        if self.order is not None:
            q, k = q[..., self.order], k[..., self.order]
        for stored, (cos, sin) in zip(self.keys, self.key_cos_sin, strict=True):
            stored[:, :, at - self._before] = self.rope.rotate_k(k, cos[row, None], sin[row, None])[:, :, 0]
        self.values[:, :, at - self._before] = v[:, :, 0]
        for memory, x in zip(self.kept, (q, k, v), strict=True):
            if memory is not None:
                memory[:, :, kept] = x[:, :, 0]
        parts = [
            self._part(q, one.cos_sin, row, one.rotation, slice(int(one.low[row]), int(one.high[row])))
            for one in self.bands
        ]
        self.chosen = None
        if self.scoring is not None and self.scoring.thetas is not None:
            self.scoring.entries[:, 0, at] = _reduced(k, self.scoring.thetas[1])
        if self.scoring is not None and stop:
            spec, scores = self.scoring, self._scores(q, self.scoring, stop)
            chosen = topk(scores, spec.count, tie=spec.tie, last=spec.last, near=spec.near, impl="reference")
            self.chosen = chosen + spec.first
            parts += self._chosen_parts(q, self.scoring, row)
        scores = torch.cat([part for part, _ in parts], dim=-1)
        self.lse = scores.logsumexp(dim=-1)
        weighted = scores.softmax(dim=-1) @ torch.cat([part for _, part in parts], dim=2)
        return weighted.to(q.dtype).transpose(1, 2)

    def _part(
        self, q: Tensor, cos_sin: CosSin, row: int | Tensor, rotation: int, where: slice | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores ``[B, H, 1, n]`` and values ``[B, H, n, Dv]`` of tokens: a range, or ``[B, H, n]``.

        Args:
            row: of the table, or one for each row and head ``[B, H]``.
        """
        cos, sin = (x[row][..., None, :].double() for x in cos_sin)
        chosen = [x.double().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in self._all(rotation)]
        if isinstance(where, slice):
            k, v = (x[:, :, where] for x in chosen)
        else:
            k, v = (torch.take_along_dim(x, where[..., None], dim=2) for x in chosen)
        return bounded(self.rope.rotate_q(q.double(), cos, sin) @ k.mT, self.scale, self.softcap), v

    def _all(self, rotation: int) -> list[Tensor]:
        """Keys of a rotation and values, with those in int8 dequantised before them."""
        exact = [self.keys[rotation], self.values]
        if self.codes is None:
            return exact
        found = []
        for own, x in zip((self.codes[rotation], self.codes[-1]), exact, strict=True):
            scales = own.scales if own.rows is None else own.scales[:, :, own.rows]
            found.append(torch.cat(((own.codes * scales).to(x.dtype), x), dim=2))
        return found

    def _chosen_parts(self, q: Tensor, scoring: ScoreSpec, row: int) -> list[tuple[Tensor, Tensor]]:
        assert self.chosen is not None
        positions, size = scoring.positions, scoring.size
        at = positions.positions[row if len(positions.positions) > 1 else 0]
        units = self.chosen.repeat_interleave(q.shape[1] // self.chosen.shape[1], dim=1)  # [B, H, m]
        parts = []
        for n, position in enumerate(at.tolist()):
            tokens = units[..., n, None] * size + torch.arange(size)
            own = position + units[..., n] % positions.block * size  # [B, H]
            parts.append(self._part(q, positions.table, own, positions.rotation, tokens))
        return parts

    def _scores(self, q: Tensor, scoring: ScoreSpec, stop: int) -> Tensor:
        """``[B, S, n]`` of the entries ``first : stop``."""
        entries, dtype = scoring.entries.double(), q.dtype
        x = q[:, :, 0].double()
        signed = (x.clamp(min=0), x.clamp(max=0)) if scoring.signs == 2 else (x,)
        total = torch.zeros(())
        for sign, query in enumerate(signed):
            keys = entries[:, :, scoring.signs - 1 - sign :: scoring.signs][:, :, scoring.first : stop]
            if scoring.sums:
                query = query.unflatten(1, (self.values.shape[1], -1)).sum(dim=2)
                query = query.to(dtype).double() if scoring.rounds else query
            if scoring.thetas is not None:
                query = _reduced(query[:, :, None], scoring.thetas[0]).to(dtype).double()[:, None]
            if scoring.parts > 1:
                total = total + torch.einsum("bhw,bhnw->bn", query, keys[:, : scoring.parts])[:, None]
            else:
                keys = keys[:, torch.arange(scoring.choosing) * keys.shape[1] // scoring.choosing]
                total = total + torch.einsum("bsw,bsnw->bsn", query, keys)
        return total


def _reduced(x: Tensor, theta: Tensor) -> Tensor:
    """``[B, W]`` in fp64 of ``[B, Hkv, 1, D]``, the heads side by side, and ``[W, Hkv · D]``."""
    return x[:, :, 0].flatten(1).double() @ theta.double().mT
