"""Reduced keys of every token: ESA's index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.choosing.ranks import AcrossRanks
from longspan.choosing.saved import Entries, SavedIndex, check_entries
from longspan.kernels.scores import products
from longspan.memory import Buffer, Slot
from longspan.rope import Rope

_BLOCK = 2048  # tokens reduced at a time


class TokenIndex(AcrossRanks):
    """``θ_k(k)`` of every token, for scores ``f(m; c) ≈ θ_q(q_c) · θ_k(k_m)`` (Wang et al., 2025, section 3.3).

    Args:
        theta_q, theta_k: ``[d', Hkv · D]``, for the unrotated keys of a token, head after head, and its queries
            summed over each key head's group.

    What is summed over ranks, each of which has the maps of its own heads, are reduced keys and queries, ``d'`` numbers
    each.
    """

    def __init__(self, theta_q: Tensor, theta_k: Tensor) -> None:
        self.theta_q, self.theta_k = self._given = theta_q, theta_k
        self._buffer = Buffer()
        self._length = 0

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def extend(self, q: Tensor, k: Tensor, v: Tensor, pads: Sequence[int], rope: Rope, scale: float) -> None:
        """Take in the tokens that follow those seen so far: ``k`` ``[B, Hkv, T, D]``, unrotated."""
        k = rope.normed_k(k)
        self._cast_to(k.device, k.dtype)
        # Some tokens at a time: on a CPU, memory that is new for all of them costs more than the products.
        blocks = k.transpose(1, 2).flatten(2).split(_BLOCK, dim=1)
        reduced = torch.cat([self._through(self.theta_k, x) for x in blocks], dim=1)[:, None]
        stop = self._length + k.shape[2]
        self._buffer.reserve(reduced, stop)
        self._buffer.write(self._length, reduced)
        self._length = stop

    def _cast_to(self, device: torch.device, dtype: torch.dtype) -> None:
        if (self.theta_k.device, self.theta_k.dtype) != (device, dtype):
            # From the maps that were given: a text before a reset may have been in a dtype that rounded them.
            self.theta_q, self.theta_k = (x.to(device, dtype) for x in self._given)

    def reserve(self, tokens: int) -> None:
        """Have room for the reduced keys of ``tokens`` in all, once there are some."""
        if self._length:
            self._buffer.reserve(self._buffer.allocated, tokens)

    @property
    def memory(self) -> list[Tensor]:
        """See ``longspan.memory.KeyIndex``: the reduced keys, once there are some."""
        return [self.entries] if self._length else []

    def take_recorded(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, place: Tensor, kept_at: Tensor) -> None:
        """Write the reduced key of one new token, ``k`` ``[B, Hkv, 1, D]``, to ``place`` ``[1]``."""
        reduced = self._through(self.theta_k, rope.normed_k(k).transpose(1, 2).flatten(2))
        self.entries.index_copy_(2, place, reduced[:, None])

    def reserve_one(self) -> Slot | None:
        """Memory for the next token's reduced key; None before the first."""
        if not self._length:
            return None
        if moved := self._length == self._buffer.capacity:
            self._buffer.reserve(self._buffer.allocated, self._length + 1)
        return Slot(self._length, moved=moved)

    def commit_one(self) -> None:
        """The next token's reduced key was written behind the others."""
        self._length += 1

    @property
    def entries(self) -> Tensor:
        """``[B, 1, N, d']``, the reduced keys with room for more; there are some."""
        return self._buffer.allocated

    def state(self) -> list[Tensor]:
        """``[B, 1, n, d']``, the reduced keys."""
        return [self._buffer.first(self._length)] if self._length else []

    def save(self) -> SavedIndex:
        """See ``longspan.choosing.saved.SavableIndex``."""
        return SavedIndex(self._buffer.first(self._length) if self._length else None, (), {"length": [self._length]})

    def most_entries(self, tokens: int) -> int:
        """See ``longspan.choosing.saved.SavableIndex``."""
        return tokens

    def restore(self, saved: SavedIndex, entries: Entries | None, tokens: int) -> None:
        """See ``longspan.choosing.saved.SavableIndex``."""
        saved.check_length(tokens)
        check_entries(entries, expected=tokens, most=tokens)
        if entries is not None:
            self._buffer.block = entries.block
            self._cast_to(entries.block.kind.device, entries.block.kind.dtype)
        self._length = tokens

    def reduced_queries(self, q: Tensor) -> Tensor:
        """Queries ``[B, Hkv, T, D]`` (groups summed) as entries are scored by them: ``[B, 1, T, 1, d']``."""
        reduced = self._through(self.theta_q, q.transpose(1, 2).flatten(2).to(self.theta_q))
        return reduced[:, None, :, None]

    def _through(self, theta: Tensor, x: Tensor) -> Tensor:
        """``[B, T, Hkv · D]`` reduced to ``[B, T, d']``."""
        return self.over_ranks(products(x[:, None], theta.expand(x.shape[0], 1, -1, -1))[:, 0]).to(theta.dtype)

    def crop(self, length: int) -> None:
        self._buffer.crop(length)
        self._length = length

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""
        self._buffer = self._buffer.selected(rows.tolist())

    def reset(self) -> None:
        self._length = 0
        self._buffer.reset()


def summed_queries(q: Tensor, kv_heads: int, share: str) -> Tensor:
    """Queries ``[B, H, T, D]`` as ``dot_scores`` takes them, for scores by the keys themselves.

    Args:
        q: unrotated, or rotated to the score's position.
        share: ``"layer"``, ``"group"`` or ``"head"``: the heads whose queries are summed.

    Returns:
        ``[B, S, T, C, D]``, ``C`` parts: one for each key head of a layer, else one.
    """
    if share == "head":
        return q[:, :, :, None]
    summed: Tensor = q.unflatten(1, (kv_heads, -1)).sum(dim=2)
    return summed[:, :, :, None] if share == "group" else summed.transpose(1, 2)[:, None]
