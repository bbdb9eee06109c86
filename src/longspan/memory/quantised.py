"""Keys and values in int8: the codes, what they are multiplied by, and a block that keeps them beside exact tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.errors import CacheError
from longspan.memory.mapped import Kind, Memory, TokenBlock

BLOCK = 64  # tokens that share the scales of their keys
_MOST = 127  # the largest code: codes are symmetric
_AT_ONCE = 4096  # tokens that are dequantised at a time
_SPARE = 64  # tokens that a tail has room for more than it was asked


def quantised_keys(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of keys ``[B, H, T, D]``: a scale for each channel of each block of ``BLOCK`` tokens.

    ``codes · scale`` is off by half a scale at most, which is 1/254 of the largest number of that channel and block.

    Returns:
        int8 ``[B, H, T, D]``, fp32 ``[B, H, ceil(T / BLOCK), D]``.

    Raises:
        CacheError: a key is infinite or NaN.
    """
    tokens = x.shape[2]
    x = torch.nn.functional.pad(x.float(), (0, 0, 0, -tokens % BLOCK)).unflatten(2, (-1, BLOCK))
    scales = x.abs().amax(dim=3)
    codes = _codes(x, scales[:, :, :, None])
    return codes.flatten(2, 3)[:, :, :tokens], scales / _MOST


def quantised_values(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of values ``[B, H, T, D]``: a scale for each token of each head; else as ``quantised_keys``.

    Returns:
        int8 ``[B, H, T, D]``, fp32 ``[B, H, T, 1]``.
    """
    x = x.float()
    scales = x.abs().amax(dim=3, keepdim=True)
    return _codes(x, scales), scales / _MOST


def _codes(x: Tensor, largest: Tensor) -> Tensor:
    if not bool(largest.isfinite().all()):
        raise CacheError("keys or values are infinite or NaN, which int8 cannot keep; keep them exact")
    # As dequantising multiplies: a scale that is rounded, or so small that it has few digits, is the one that counts.
    scales = largest / _MOST
    return torch.where(scales > 0, x / scales, 0).round_().clamp_(-_MOST, _MOST).to(torch.int8)


class Codes:
    """The first tokens of a stream in int8.

    Args:
        codes: int8 ``[1, H, N, D]``.
        scales: fp32 ``[1, H, R, D]`` or ``[1, H, R, 1]``.
        rows: ``[N]`` int64, the row of ``scales`` of each token; None if every token has its own.
    """

    def __init__(self, codes: Tensor, scales: Tensor, rows: Tensor | None) -> None:
        self.codes, self.scales, self.rows = codes, scales, rows

    def range(self, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Tokens ``[start, stop)``, ``[1, H, n, D]``, dequantised on ``device``.

        The products are in fp32, which every machine rounds alike.
        """
        codes, scales = self.codes[:, :, start:stop], self.scales
        if self.rows is None:
            scales = scales[:, :, start:stop]
        else:
            rows = self.rows[start:stop]
            first = int(rows[0]) if len(rows) else 0
            own = scales[:, :, first : int(rows[-1]) + 1 if len(rows) else 0].to(device)
            scales = own.index_select(2, (rows - first).to(device))
        return codes.to(device).float().mul_(scales.to(device)).to(dtype)

    def chosen(self, head: int, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens ``[n]`` (int64) of one head, ``[n, D]``, dequantised."""
        rows = tokens if self.rows is None else self.rows[tokens]
        scales = self.scales[0, head].index_select(0, rows)
        return self.codes[0, head].index_select(0, tokens).float().mul_(scales).to(dtype)


class Quantised(TokenBlock):
    """``[1, H, capacity, D]`` in the CPU's memory, of which the first ``count`` tokens are codes and the others exact.

    Codes are only read, and several blocks may have the same.
    """

    def __init__(self, kind: Kind, codes: Codes, count: int) -> None:
        self.kind, self.codes, self.count = kind, codes, count
        self._tail = Memory(kind, _SPARE, host=True)
        self.capacity = count + self._tail.capacity

    @property
    def device(self) -> torch.device:
        return self._tail.device

    @property
    def coded(self) -> Codes:
        """The first ``count`` tokens."""
        rows = None if self.codes.rows is None else self.codes.rows[: self.count]
        scales = self.codes.scales if rows is not None else self.codes.scales[:, :, : self.count]
        return Codes(self.codes.codes[:, :, : self.count], scales, rows)

    def tail(self, tokens: int) -> Tensor:
        """Memory of so many tokens behind them."""
        return self._tail.tensor[:, :, :tokens]

    @property
    def nbytes(self) -> int:
        return self.codes.codes.nbytes + self.codes.scales.nbytes + self._tail.nbytes

    def part(self, start: int, stop: int) -> Tensor:
        """See ``TokenBlock``; a copy if it has tokens that are codes."""
        tail = self._tail.part(max(start - self.count, 0), max(stop - self.count, 0))
        if start >= self.count:
            return tail
        coded = self.codes.range(start, min(stop, self.count), self.kind.dtype, self.device)
        return coded if stop <= self.count else torch.cat((coded, tail), dim=2)

    def chosen(self, head: int, tokens: Tensor) -> Tensor:
        """Tokens ``[n]`` (int64) of one head, ``[n, D]``."""
        coded = tokens < self.count
        if bool(coded.all()):
            return self.codes.chosen(head, tokens, self.kind.dtype)
        out = torch.empty(len(tokens), self.kind.size, dtype=self.kind.dtype)
        out[coded] = self.codes.chosen(head, tokens[coded], self.kind.dtype)
        out[~coded] = self._tail.tensor[0, head].index_select(0, tokens[~coded] - self.count)
        return out

    def widen(self, tokens: int) -> bool:
        """See ``TokenBlock``: the tail moves, and the codes stay."""
        if tokens > self.capacity:
            old = self._tail
            self._tail = Memory(self.kind, max(tokens - self.count + _SPARE, old.capacity * 3 // 2), host=True)
            self._tail.write(0, old.tensor)
            self.capacity = self.count + self._tail.capacity
        return True

    def reopen(self, start: int) -> None:
        """See ``TokenBlock``; the codes stay as they are, for others."""
        self.count = min(self.count, start)
        self.capacity = self.count + self._tail.capacity

    def write(self, start: int, x: Tensor, rows: slice | None = None) -> None:
        """See ``TokenBlock``; tokens that are codes are not written."""
        self._tail.write(start - self.count, x, rows)

    def copy(self) -> Quantised:
        """Another block with the same codes, and a tail of its own."""
        new = Quantised(self.kind, self.codes, self.count)
        new.widen(self.capacity)
        new._tail.write(0, self._tail.tensor)
        return new


class Coded:
    """Stands for tokens ``[first, stop)`` of a block with codes, for kernels that read chosen ones.

    Attributes:
        shape: ``[1, H, stop - first, D]``.
    """

    def __init__(self, block: Quantised, first: int, stop: int) -> None:
        self._block, self._first, self._stop = block, first, stop
        self.shape = torch.Size((1, block.kind.heads, stop - first, block.kind.size))
        self.dtype, self.device = block.kind.dtype, block.device

    def __getitem__(self, key: tuple[slice, slice, slice]) -> Coded:
        start, stop, _ = key[2].indices(self.shape[2])
        return Coded(self._block, self._first + start, self._first + stop)

    def new_empty(self, *shape: int) -> Tensor:
        """Uninitialised memory of that shape where chosen tokens go."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def chosen(self, row: int, head: int, tokens: Tensor) -> Tensor:
        """Tokens ``[n]`` (int64) of one head of a row, ``[n, D]``, dequantised."""
        assert row == 0
        return self._block.chosen(head, tokens + self._first)

    def exact(self) -> Tensor:
        """All of them, dequantised."""
        return self._block.part(self._first, self._stop)


def exact(x: Any) -> Tensor:
    """``x`` ``[B, H, n, D]``, dequantised if it stands for tokens that are codes."""
    return x.exact() if isinstance(x, Coded) else x


def dequantised(block: TokenBlock, codes: Codes, count: int) -> TokenBlock:
    """``block``, ``[1, H, capacity, D]``, with the first ``count`` tokens of ``codes`` in it."""
    for start in range(0, count, _AT_ONCE):
        stop = min(start + _AT_ONCE, count)
        block.write(start, codes.range(start, stop, block.kind.dtype, block.device))
    return block
