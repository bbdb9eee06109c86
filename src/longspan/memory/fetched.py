"""A stream of a store that is brought to kernels, which read ranges of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from longspan.memory.kv import KVStore


class Fetched:
    """Stands for tokens ``first ..`` of batch rows ``rows`` of a stream; ``x[:, :, a:b]`` brings that range.

    Args:
        stream: the number of a rotation of the keys, or None for the values.
    """

    def __init__(self, store: KVStore, stream: int | None, rows: slice, first: int) -> None:
        self._store, self._stream, self._rows, self._first = store, stream, rows, first
        _, heads, tokens, width = store.shape(stream)
        self.shape = torch.Size((rows.stop - rows.start, heads, tokens - first, width))

    def row(self, n: int) -> Fetched:
        """One of the rows."""
        at = self._rows.start + n
        return Fetched(self._store, self._stream, slice(at, at + 1), self._first)

    def double(self) -> Tensor:
        """All of it in fp64, ``[B, H, n, D]``, for what computes by definition."""
        return self[:, :, :].double()

    def __getitem__(self, key: tuple[slice, slice, slice]) -> Tensor:
        start, stop, _ = key[2].indices(self.shape[2])
        return self._store.take(self._stream, self._first + start, self._first + stop)[self._rows]
