"""Scores of chunks: the summary of each full chunk, and the score of a query for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.choosing.tail import Tail
from longspan.choosing.unit_index import UnitIndex
from longspan.dtypes import accumulator, widen
from longspan.errors import CacheError, LongspanError
from longspan.kernels.scores import products, representations
from longspan.memory import Slot
from longspan.rope import Rope
from longspan.terms import ChunkScore, Share, head_sets

SUBMEANS = 4  # sub-chunks with a mean of their own
_AT_ONCE, _ON_A_GPU = 8, 64  # chunks summarised at a time; few stay in a processor's cache
_TAIL = 64  # tokens at the end that may be dropped again at any time; as many as a chunk if chunks are longer


class ChunkIndex(UnitIndex):
    """The summaries of a layer's full chunks, the same whether a chunk filled in one call or token by token.

    ========================  ==============================================================  ==================
    score                     kept of a chunk                                                 of a query
    ========================  ==============================================================  ==================
    ``representation``        per query head ``c = softmax(q^c Kᵀ/√d) K`` (Eq 1), where       ``q · c``
                              ``q^c = mean(softmax(QKᵀ/√d) V)`` (Eq 2), Q and K rotated to
                              ``index mod l``
    ``mean``                  the mean of the keys                                            ``q · mean``
    ``submeans``              the means of four parts                                         the best part's
    ``bounds``                smallest and largest value per channel of the keys (Quest)      upper bound of ``q · k``
    ``token_max``             every key, or its reduced form                                  the best token's ``q · k``
    ========================  ==============================================================  ==================

    Queries are unrotated; keys too, but for the representation's. Summaries are kept in fp32, whose rounding does not
    decide between chunks; every token's keys in their own dtype.

    Args:
        size: ``l``, tokens of a chunk.
        kind: the score.
        share: ``"head"``, or what scores are summed over: the ``"group"`` of a key head or the ``"layer"``.
        order: the permutation of a value's channels into the order of the keys', for Eq 1; None if they are alike.
        reduced: for ``token_max`` θ_q and θ_k, ``[Hkv, d', D]`` each, that scores go through; None for exact scores.
    """

    def __init__(
        self,
        size: int,
        kind: ChunkScore,
        share: Share = "head",
        reduced: tuple[Tensor, Tensor] | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.size, self.kind, self.share, self.reduced, self.order = size, kind, share, reduced, order
        counts = {"representation": 1, "mean": 1, "submeans": min(SUBMEANS, size), "bounds": 2, "token_max": size}
        self.per_unit = counts[kind]
        super().__init__(Tail(size + max(size, _TAIL)))

    def extend(self, q: Tensor, k: Tensor, v: Tensor, pads: Sequence[int], rope: Rope, scale: float) -> None:
        """Take in the tokens that follow those seen so far and summarise every chunk that became full.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated.
            pads: padding tokens at the start of each row; chunks count from the first token that is none.
            rope, scale: the layer's; for the representation.

        Raises:
            ValueError: the representation of keys and values of different sizes.
        """
        if self.kind == "representation" and k.shape[-1] != v.shape[-1]:
            raise LongspanError(
                f"a chunk's representation scores its keys (size {k.shape[-1]}) by a mean of its values (size "
                f"{v.shape[-1]}), which requires equal sizes; use another score, such as score='bounds'"
            )
        self._begin(pads)
        new = [q, k, v] if self.kind == "representation" else [k]
        past, self._length = self._length, self._length + q.shape[2]
        for row in range(q.shape[0]):
            finished, full = self._finished[row], max(self._length - pads[row], 0) // self.size
            if full > finished:
                self._summarise(row, finished, full, new, past, rope, scale)
                self._finished[row] = full
        self.tail.extend(new)

    def reserve_one(self) -> Slot | None:
        """Memory for the next token's inputs; None before the first token."""
        if not self._finished:
            return None
        tail, stop = self.tail, self._length + 1
        tail.make_room(1)
        rows = zip(self._pads, self._finished, strict=True)
        return Slot(self._length, tail.stop - tail.start, completes=any((stop - p) // self.size > n for p, n in rows))

    def commit_one(self) -> None:
        """The next token's inputs were written to what ``reserve_one`` gave."""
        self._length += 1
        self.tail.stop += 1

    def summarise(self, rope: Rope, scale: float) -> None:
        """Summarise the chunks that the last token filled, one a row at the most."""
        full = [max(self._length - pad, 0) // self.size for pad in self._pads]
        rows = [row for row, n in enumerate(full) if n > self._finished[row]]
        inputs = []
        for n in range(len(self.tail.tensors)):
            ends = [(row, self._pads[row] + full[row] * self.size) for row in rows]
            inputs.append(torch.cat([self.tail.slice(n, end - self.size, end)[row] for row, end in ends], dim=1))
        parts = self._summary(inputs, rope, scale).split(self.per_unit, dim=1)
        for row, summary in zip(rows, parts, strict=True):
            self._write(row, self._finished[row], summary)
            self._finished[row] += 1

    def reserve(self, tokens: int) -> None:
        """Have room for the summaries of ``tokens`` in all, once there are some."""
        if self._buffer.capacity:
            self._buffer.reserve(self._buffer.allocated, self.most_entries(tokens))

    @property
    def memory(self) -> list[Tensor]:
        """See ``longspan.memory.KeyIndex``: the last tokens' inputs, and the summaries once there are some."""
        return self.tail.tensors if self.entries is None else [*self.tail.tensors, self.entries]

    @property
    def input_copies(self) -> list[Tensor]:
        """Room for the last tokens' queries, keys and values, or for keys alone; see ``Tail.tensors``."""
        return self.tail.tensors

    @property
    def entries(self) -> Tensor | None:
        """``[B, S, N, W]``, the summaries with room for more; None before the first."""
        return self._buffer.allocated if self._buffer.capacity else None

    def _summarise(self, row: int, at: int, full: int, new: list[Tensor], past: int, rope: Rope, scale: float) -> None:
        first, last = self._pads[row] + at * self.size, self._pads[row] + full * self.size
        if first < past:  # the chunk that was begun in an earlier call
            inputs = [
                torch.cat((self.tail.slice(n, first, past)[row], x[row, :, : first + self.size - past]), dim=1)
                for n, x in enumerate(new)
            ]
            self._write(row, at, self._summary(inputs, rope, scale))
            at, first = at + 1, first + self.size
        step = (_AT_ONCE if new[0].device.type == "cpu" else _ON_A_GPU) * self.size
        for a in range(first, last, step):
            b = min(a + step, last)
            self._write(row, at, self._summary([x[row, :, a - past : b - past] for x in new], rope, scale))
            at += (b - a) // self.size

    def _write(self, row: int, at: int, summary: Tensor) -> None:
        summary = summary if self.kind == "token_max" else widen(summary)
        heads, entries, width = summary.shape
        stop = at * self.per_unit + entries
        self._buffer.reserve(summary.new_empty(()).expand(len(self._finished), heads, 1, width), stop)
        self._buffer.allocated[row, :, at * self.per_unit : stop] = summary

    def _summary(self, tokens: list[Tensor], rope: Rope, scale: float) -> Tensor:
        """``[Hkv, n · per_unit, D]`` of ``n`` chunks, from ``[H, n · l, D]`` of each input.

        Representations of heads that choose together lie side by side, ``[S, n, H / S · D]``: one product then gives
        the sum of their scores.
        """
        chunks = [x.unflatten(1, (-1, self.size)) for x in tokens]  # [H, n, l, D]
        if self.kind == "representation":
            q, k, v = chunks
            summary = representations(q, k, v, rope, scale, order=self.order)
            return _side_by_side(summary, head_sets(self.share, q.shape[0], k.shape[0]))
        keys = rope.normed_k(chunks[0])
        if self.kind == "mean":
            return keys.mean(dim=2)
        if self.kind == "submeans":
            means = [part.mean(dim=2) for part in keys.tensor_split(self.per_unit, dim=2)]
            return torch.stack(means, dim=2).flatten(1, 2)
        if self.kind == "bounds":
            return torch.stack((keys.amin(dim=2), keys.amax(dim=2)), dim=2).flatten(1, 2)
        if self.reduced is None:
            return keys.flatten(1, 2)
        return (widen(keys.flatten(1, 2)) @ self.reduced[1].to(keys.device, accumulator(keys)).mT).to(keys.dtype)

    def scores(self, q: Tensor, rows: slice | Tensor, count: int, rope: Rope, kv_heads: int) -> Tensor:
        """How well each query goes with each of the first ``count`` chunks, all of them full.

        Args:
            q: ``[B, H, T, D]``, unrotated, of the batch rows ``rows``.
            kv_heads: ``Hkv``.

        Returns:
            ``[B, S, T, count]`` in fp32 (fp64 for fp64), S = H, Hkv or 1.
        """
        entries, share = self._buffer.first(count * self.per_unit)[rows], self.share
        q, group = rope.normed_q(q), q.shape[1] // kv_heads
        if self.kind == "representation":
            scores = products(_side_by_side(widen(q), head_sets(share, q.shape[1], kv_heads)), entries)
        elif self.kind == "bounds":
            scores = bound_scores(q, entries[:, :, ::2], entries[:, :, 1::2], share)
        else:
            folded = _folded(q, group, share)
            if self.reduced is not None:
                folded = folded @ self.reduced[0].to(folded).mT
            scores = _unfolded(products(folded, entries), q, share)  # [B, S, T, n · per_unit]
        scores = self.over_ranks(scores)  # before the largest of a chunk's parts is taken, which is that of the sum
        return scores if scores.shape[-1] == count else scores.unflatten(-1, (count, self.per_unit)).amax(dim=-1)

    def most_entries(self, tokens: int) -> int:
        """See ``longspan.choosing.saved.SavableIndex``."""
        return tokens // self.size * self.per_unit

    def _first_of(self, unit: int) -> int:
        return unit * self.size

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on.

        Raises:
            CacheError: a chunk that opens again cannot be refilled; nothing has changed.
        """
        if self._reopened(length) is not None:
            raise CacheError(
                f"dropping {self._length - length} tokens opens a chunk of {self.size} tokens again whose inputs "
                f"are gone; up to {self.tail.keep - self.size} can be dropped at any time, or any number that "
                "ends at a chunk's border; in assisted decoding, ask for fewer candidate tokens"
            )
        rows = zip(self._pads, self._finished, strict=True)
        self._leave([min(full, max(length - pad, 0) // self.size) for pad, full in rows], length)

    def croppable(self, length: int) -> int:
        """See ``longspan.memory.protocols.KeyIndex``: at a chunk's border it always can."""
        while (border := self._reopened(length)) is not None:
            length = border
        return length

    def _reopened(self, length: int) -> int | None:
        """Where a full chunk begins that ``length`` tokens would open again though its inputs are gone; else None."""
        for pad, full in zip(self._pads, self._finished, strict=True):
            left = max(length - pad, 0)
            begun = pad + left // self.size * self.size
            if left // self.size < full and left % self.size and begun < self.tail.start:
                return begun
        return None


def bound_scores(q: Tensor, low: Tensor, high: Tensor, share: str) -> Tensor:
    """Upper bounds of ``q · k`` for keys between ``low`` and ``high`` in each channel, summed over heads that share.

    Args:
        q: ``[B, H, T, D]``, unrotated.
        low, high: ``[B, Hkv, n, D]`` in the queries' accumulator.
        share: see ``ChunkIndex``.

    Returns:
        ``[B, S, T, n]`` in fp32 (fp64 for fp64), S = H, Hkv or 1.
    """
    group = q.shape[1] // low.shape[1]
    found = products(_folded(q.clamp(min=0), group, share), high)
    found += products(_folded(q.clamp(max=0), group, share), low)
    return _unfolded(found, q, share)


def _folded(q: Tensor, group: int, share: str) -> Tensor:
    """Queries ``[B, H, T, D]`` as rows of their key heads: summed over the group, or ``[B, Hkv, G · T, D]``."""
    grouped: Tensor = widen(q).unflatten(1, (-1, group))
    return grouped.flatten(2, 3) if share == "head" else grouped.sum(dim=2)


def _unfolded(scores: Tensor, q: Tensor, share: str) -> Tensor:
    """``[B, S, T, n]`` of what ``_folded`` queries scored, which were ``q`` ``[B, H, T, D]``."""
    scores = scores.view(q.shape[0], -1, q.shape[2], scores.shape[-1])
    return scores.sum(dim=1, keepdim=True) if share == "layer" else scores


def _side_by_side(x: Tensor, sets: int) -> Tensor:
    """``[..., H, n, D]`` with the heads that share as one: ``[..., S, n, H / S · D]``."""
    if x.shape[-2] == 1 and x.dim() == 4:  # they lie so already
        return x.reshape(x.shape[0], sets, 1, -1)
    joined: Tensor = x.unflatten(-3, (sets, -1)).transpose(-3, -2).flatten(-2)
    return joined
