"""Reduced keys of every token: ESA's index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from longspan.index.saved import Entries, SavedIndex, check_entries
from longspan.kernels.scores import products
from longspan.rope import Rope
from longspan.store import Buffer, Slot

_PIECE = 2048  # tokens reduced at a time


class TokenIndex:
    """``θ_k(k)`` of every token, for scores ``f(m; c) ≈ θ_q(q_c) · θ_k(k_m)`` (Wang et al., 2025, section 3.3).

    Args:
        theta_q, theta_k: ``[d', Hkv · D]``, for the unrotated keys of a token, head after head, and its queries
            summed over each key head's group.

    Attributes:
        across: sums over the processes that hold the other heads of the layer, whose maps they have; None where this
            one has them all. What is summed are reduced keys and queries, ``d'`` numbers each.
    """

    across: Callable[[Tensor], Tensor] | None = None

    def __init__(self, theta_q: Tensor, theta_k: Tensor) -> None:
        self.theta_q, self.theta_k = theta_q, theta_k
        self._buffer = Buffer()
        self._length = 0

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def extend(self, q: Tensor, k: Tensor, v: Tensor, pads: Sequence[int], rope: Rope, scale: float) -> None:
        """Take in the tokens that follow those seen so far: ``k`` ``[B, Hkv, T, D]``, unrotated."""
        k = rope.norm_k(k) if rope.norm_k is not None else k
        self.theta_k, self.theta_q = self.theta_k.to(k), self.theta_q.to(k)
        # Some tokens at a time: on a CPU, memory that is new for all of them costs more than the products.
        parts = [self._through(self.theta_k, x) for x in k.transpose(1, 2).flatten(2).split(_PIECE, dim=1)]
        reduced = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[:, None]
        stop = self._length + k.shape[2]
        self._buffer.reserve(reduced, stop)
        self._buffer.write(self._length, reduced)
        self._length = stop

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
        """See ``longspan.index.saved.SavableIndex``."""
        return SavedIndex(self._buffer.first(self._length) if self._length else None, (), {"length": [self._length]})

    def most_entries(self, tokens: int) -> int:
        """See ``longspan.index.saved.SavableIndex``."""
        return tokens

    def restore(self, saved: SavedIndex, entries: Entries | None, tokens: int) -> None:
        """See ``longspan.index.saved.SavableIndex``."""
        saved.check_length(tokens)
        check_entries(entries, expected=tokens, most=tokens)
        if entries is not None:
            self._buffer.adopt(entries.kind, entries.block)
            # As the first tokens of a text do it.
            device, dtype = entries.kind.device, entries.kind.dtype
            self.theta_q, self.theta_k = self.theta_q.to(device, dtype), self.theta_k.to(device, dtype)
        self._length = tokens

    def asked(self, q: Tensor) -> Tensor:
        """Queries ``[B, Hkv, T, D]`` (groups summed) as entries are scored by them: ``[B, 1, T, 1, d']``."""
        return self._reduced(q)[:, None, :, None]

    def scores(self, q: Tensor, rows: slice, start: int, stop: int) -> Tensor:
        """``f`` of the same: ``[B, 1, T, M]``."""
        return products(self._reduced(q)[:, None], self._buffer.allocated[rows, :, start:stop])

    def _reduced(self, q: Tensor) -> Tensor:
        return self._through(self.theta_q, q.transpose(1, 2).flatten(2).to(self.theta_q))

    def _through(self, theta: Tensor, x: Tensor) -> Tensor:
        """``[B, T, Hkv · D]`` reduced to ``[B, T, d']``."""
        reduced = products(x[:, None], theta.expand(x.shape[0], 1, -1, -1))[:, 0]
        return (reduced if self.across is None else self.across(reduced)).to(theta.dtype)

    def crop(self, length: int) -> None:
        self._length = length

    def select(self, rows: Tensor) -> None:
        self._buffer.select(rows)

    def reset(self) -> None:
        self._length = 0
        self._buffer.reset()


def exact_asked(q: Tensor, kv_heads: int, share: str) -> Tensor:
    """Queries ``[B, H, T, D]`` ``[B, S, T, C, D]`` as ``token_scores`` takes them, for ``exact_scores``."""
    if share == "head":
        return q[:, :, :, None]
    summed = q.unflatten(1, (kv_heads, -1)).sum(dim=2)
    return summed[:, :, :, None] if share == "group" else summed.transpose(1, 2)[:, None]


def exact_scores(q: Tensor, keys: Tensor, share: str) -> Tensor:
    """``f`` of each query for each key from the keys themselves, summed over the heads that choose together.

    Args:
        q: ``[B, H, T, D]``, unrotated or turned to the score's position.
        keys: ``[B, Hkv, M, D]``, unrotated.
        share: ``"layer"``, ``"group"`` or ``"head"``.

    Returns:
        ``[B, S, T, M]`` in fp32 (fp64 for fp64), on the queries' device; computed where the keys are.
    """
    device = q.device
    return _exact(q.to(keys.device), keys, share).to(device)


def _exact(q: Tensor, keys: Tensor, share: str) -> Tensor:
    grouped = q.unflatten(1, (keys.shape[1], -1))
    if share == "head":
        return products(grouped.flatten(2, 3), keys).unflatten(2, (-1, q.shape[2])).flatten(1, 2)
    summed = grouped.sum(dim=2)
    if share == "group":
        return products(summed, keys)
    total = products(summed[:, :1], keys[:, :1])
    for head in range(1, keys.shape[1]):
        total += products(summed[:, head : head + 1], keys[:, head : head + 1])
    return total
