"""Representatives of blocks: InfLLM's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.choosing.saved import Entries, SavedIndex
from longspan.choosing.tail import Tail
from longspan.choosing.unit_index import UnitIndex, equal_runs
from longspan.dtypes import widen
from longspan.errors import CacheError
from longspan.rope import Rope, cos_sin

SPARE = 64  # tokens at the end that may be dropped again at any time, with the rest of their query chunk


@dataclass(frozen=True)
class BlockLayout:
    """Where blocks are and when a query chunk chooses them.

    Block ``b`` is the ``size`` tokens from ``initial + b · size`` on, and can be chosen once none of it is local.

    Args:
        initial: first tokens that are always kept.
        local: tokens before the query chunk that are always kept.
        size: tokens of a block.
        blocks: how many a query chunk chooses.
        query_chunk: the most queries of a query chunk.
        representatives: how many tokens of a block stand for it.
        dense_queries: the first queries, which keep every key: ``L``, or fewer.
    """

    initial: int
    local: int
    size: int
    blocks: int
    query_chunk: int
    representatives: int = 1
    dense_queries: int = 0

    def candidates(self, start: int) -> int:
        """How many blocks the query chunk from ``start`` on chooses from: those that end before its local tokens."""
        return max(start - self.local - self.initial, 0) // self.size


class BlockIndex(UnitIndex):
    """The representatives of every block that has left the local tokens (Xiao et al., 2024, section 3.2).

    A token's local score is the mean, over the queries ``i`` that came after it and to which it was local, of
    ``Σ_h q_i · R(j - i) k_j``; a block's representatives are its tokens with the highest ones. The score of a block is
    ``Σ_h Σ_r q · k_r`` over the representatives, unrotated, which is linear: their sum is all that is kept.

    So is the local score: ``Σ_i q_i · R(j - i) k_j = (Σ_i R(i) q_i) · R(j) k_j``. Rotated queries and bare keys of the
    last tokens are kept until their block is whole and no longer local to any query; one running sum of the queries
    then gives the scores of all its tokens. A block is the same whether it was finished in prefill or in decoding.

    Args:
        layout: of the blocks, at whose ``dense_queries`` a query chunk ends whatever its length.

    Attributes:
        calls: where recent calls began, in the cache's own count.
    """

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self._step = max(layout.query_chunk, SPARE)  # tokens taken in at a time
        # The oldest block that is not finished began at most so long ago, see ``_last_seen``.
        keep = layout.local + 2 * layout.query_chunk + layout.size + self._step + SPARE
        # It holds queries, summed over their key head's group, and keys.
        super().__init__(Tail(keep, keep + max(keep // 4, self._step)))
        self.calls: list[int] = []

    def extend(self, q: Tensor, k: Tensor, v: Tensor, pads: Sequence[int], rope: Rope, scale: float) -> None:
        """Take in the tokens that follow those seen so far, which arrived in one call.

        Args:
            q, k: ``[B, H, T, D]`` and ``[B, Hkv, T, D]``, unrotated.
            pads: padding tokens at the start of each row; blocks count from the first token that is none.
            rope: the layer's, for the local scores.
        """
        self._begin(pads)
        if len(self.calls) > self.tail.room:
            self.calls = [at for at in self.calls if at >= self.tail.start]
        self.calls.append(self._length)
        for a in range(0, q.shape[2], self._step):
            part = slice(a, a + self._step)
            self._take(q[:, :, part], k[:, :, part], rope)
            for first, last, pad in equal_runs(self._pads):
                self._finish(slice(first, last), pad, rope)

    def _take(self, q: Tensor, k: Tensor, rope: Rope) -> None:
        start, stop = self._length, self._length + q.shape[2]
        if (pad := max(self._pads)) <= start and pad == min(self._pads):
            own: Tensor | slice = slice(start - pad, stop - pad)
        else:
            own = (torch.arange(start, stop) - torch.tensor(self._pads)[:, None]).clamp(min=0)
        rotated = widen(rope.rotate_q(q, *cos_sin(rope.table, own, q.device)))
        self.tail.extend([rotated.unflatten(1, (k.shape[1], -1)).sum(dim=2), k])
        self._length += q.shape[2]

    def _last_seen(self, tokens: Tensor, pad: int) -> Tensor:
        """One past the last query to which each of ``tokens`` is local: where a query chunk first lacks it."""
        least = tokens + self.layout.local + 1
        at = -(-least // self.layout.query_chunk) * self.layout.query_chunk
        at = torch.where(least <= self.layout.dense_queries, at.clamp(max=self.layout.dense_queries), at)
        calls = torch.tensor([*(call - pad for call in self.calls), torch.iinfo(torch.int64).max])
        return torch.minimum(at, calls[torch.searchsorted(calls, least)])

    def _ends(self, first: int, last: int, pad: int) -> Tensor:
        """Where the query chunk begins that can first choose each of the blocks ``first : last``."""
        return self._last_seen(self.layout.initial - 1 + torch.arange(first + 1, last + 1) * self.layout.size, pad)

    def _finish(self, rows: slice, pad: int, rope: Rope) -> None:
        """Summarise the blocks of rows with equal padding that the queries seen so far complete."""
        finished, size = self._finished[rows.start], self.layout.size
        seen = self._length - pad
        full = self.layout.candidates(seen)
        if full > finished:
            full = finished + int((self._ends(finished, full, pad) <= seen).sum())
        if full <= finished:
            return
        low, high = self.layout.initial + finished * size, self.layout.initial + full * size
        tokens = torch.arange(low, high)
        stops = self._last_seen(tokens, pad)
        queries = self.tail.slice(0, pad + low, pad + int(stops[-1]))[rows]
        keys = self.tail.slice(1, pad + low, pad + high)[rows]
        sums = torch.nn.functional.pad(queries.cumsum(dim=2), (0, 0, 1, 0))
        after = sums.index_select(2, (stops - low).to(sums.device)) - sums[:, :, 1 : high - low + 1]
        rotated = widen(rope.rotate_k(keys, *cos_sin(rope.table, tokens, keys.device)))
        means = self.over_ranks((after * rotated).sum(dim=(1, 3))) / (stops - tokens - 1).to(rotated.device)
        best = means.unflatten(-1, (-1, size)).topk(self.layout.representatives, dim=-1).indices
        bare = widen(rope.normed_k(keys)).unflatten(2, (-1, size))
        summed = torch.take_along_dim(bare, best[:, None, :, :, None], dim=3).sum(dim=3)
        self._buffer.reserve(summed[:1].expand(len(self._pads), -1, -1, -1), full)
        self._buffer.allocated[rows, :, finished:full] = summed
        self._finished[rows] = [full] * (rows.stop - rows.start)

    def scores(self, q: Tensor, rows: slice | Tensor, count: int, rope: Rope) -> Tensor:
        """The scores of the first ``count`` blocks for a query chunk; each of these blocks is complete.

        Args:
            q: ``[B, H, T, D]``, unrotated, of the batch rows ``rows``.

        Returns:
            ``[B, 1, count]`` in fp32 (fp64 for fp64): the sum over queries, heads and representatives.
        """
        entries = self._buffer.allocated[rows, :, :count]
        q = widen(rope.normed_q(q))
        summed = q.unflatten(1, (entries.shape[1], -1)).sum(dim=(2, 3))
        return self.over_ranks((entries @ summed[..., None])[..., 0].sum(dim=1, keepdim=True))

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on.

        Raises:
            CacheError: blocks that are local again cannot be summarised anew; nothing has changed.
        """
        if self.croppable(length) < length:
            raise CacheError(
                f"dropping {self._length - length} tokens makes blocks of {self.layout.size} tokens local again "
                f"whose inputs are gone; up to {SPARE} can be dropped at any time. Read the text again with a new "
                "cache; in assisted decoding, ask for fewer candidate tokens"
            )
        rows = zip(self._pads, self._finished, strict=True)
        self._leave([self._kept(pad, full, length) for pad, full in rows], length)
        self.calls = [at for at in self.calls if at < length]

    def croppable(self, length: int) -> int:
        """See ``longspan.memory.protocols.KeyIndex``: in a long text there is nothing between a few tokens and all."""
        for pad, full in zip(self._pads, self._finished, strict=True):
            first = self.layout.initial + self._kept(pad, full, length) * self.layout.size
            if first < length - pad and pad + first < self.tail.start:
                return 0
        return length

    def _kept(self, pad: int, full: int, length: int) -> int:
        """How many of a row's ``full`` units ``length`` tokens leave summarised."""
        return int((self._ends(0, full, pad) <= length - pad).sum())

    def save(self) -> SavedIndex:
        """See ``longspan.choosing.saved.SavableIndex``; the calls decide to which queries a token was local."""
        saved = super().save()
        return replace(saved, counts={**saved.counts, "calls": list(self.calls)})

    def most_entries(self, tokens: int) -> int:
        """See ``longspan.choosing.saved.SavableIndex``."""
        return self.layout.candidates(tokens)

    def _first_of(self, unit: int) -> int:
        return self.layout.initial + unit * self.layout.size

    def restore(self, saved: SavedIndex, entries: Entries | None, tokens: int) -> None:
        """See ``longspan.choosing.saved.SavableIndex``."""
        calls = list(saved.counts["calls"])
        if calls != sorted(calls) or not all(0 <= call < tokens for call in calls):
            raise ValueError(f"its calls do not lie within {tokens} tokens")
        super().restore(saved, entries, tokens)
        self.calls = calls

    def reset(self) -> None:
        super().reset()
        self.calls = []
