"""The key-value store of one layer: buffers that grow in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVStore:
    """Values and one or more rotations of the keys, ``[B, Hkv, capacity, D]``, appended to without copying the past.

    A full buffer grows by half, so a token is copied about twice over a store's life, and memory is at most 1.5 times
    what is held.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self.length = 0

    @property
    def batch(self) -> int:
        """Rows held; 0 when nothing was stored yet."""
        return self._buffers[0].shape[0] if self._buffers else 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(b.numel() * b.element_size() for b in self._buffers)

    @property
    def keys(self) -> list[Tensor]:
        """Each stored rotation of the keys, ``[B, Hkv, length, D]``, as views."""
        return [b[:, :, : self.length] for b in self._buffers[:-1]]

    @property
    def values(self) -> Tensor:
        """``[B, Hkv, length, Dv]``, a view."""
        return self._buffers[-1][:, :, : self.length]

    def append(self, keys: Sequence[Tensor], values: Tensor) -> None:
        """Add ``T`` tokens: ``[B, Hkv, T, D]`` for each rotation, and ``[B, Hkv, T, Dv]``."""
        new = [*keys, values]
        if not self._buffers:
            self._buffers = [x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in new]
        self._fits(new)
        stop = self.length + values.shape[2]
        if stop > self._buffers[0].shape[2]:
            self._grow(max(stop + 64, self._buffers[0].shape[2] * 3 // 2))
        for buffer, x in zip(self._buffers, new, strict=True):
            buffer[:, :, self.length : stop] = x
        self.length = stop

    def _fits(self, new: list[Tensor]) -> None:
        held = [(b.shape[0], b.shape[1], b.shape[3], b.dtype, b.device) for b in self._buffers]
        given = [(x.shape[0], x.shape[1], x.shape[3], x.dtype, x.device) for x in new]
        if held != given:
            raise ValueError(
                f"the cache holds (batch, heads, size, dtype, device) {held} and cannot take {given}; "
                "start a new cache, or repeat or select this one's rows"
            )

    @torch.inference_mode(False)  # a buffer made in inference mode could not be written to outside it
    def _grow(self, capacity: int) -> None:
        for n, old in enumerate(self._buffers):
            # One buffer at a time, so that the old copy of only one is alive.
            self._buffers[n] = old.new_empty(*old.shape[:2], capacity, old.shape[3])
            self._buffers[n][:, :, : self.length] = old[:, :, : self.length]

    def crop(self, tokens: int) -> None:
        """Forget the last ``tokens`` tokens."""
        if not 0 <= tokens <= self.length:
            raise ValueError(f"cannot drop {tokens} of {self.length} tokens")
        self.length -= tokens

    @torch.inference_mode(False)
    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order (repeats allowed)."""
        self._buffers = [old.index_select(0, rows.to(old.device)) for old in self._buffers]

    @torch.inference_mode(False)
    def repeat(self, times: int) -> None:
        """Repeat each row ``times`` times, copies side by side."""
        self._buffers = [old.repeat_interleave(times, dim=0) for old in self._buffers]

    def reset(self) -> None:
        """Forget everything and free the buffers."""
        self._buffers, self.length = [], 0
