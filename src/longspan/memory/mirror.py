"""The last tokens of a store whose keys and values lie elsewhere, kept on the device too."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from longspan.memory.buffer import SPARE


class Mirror:
    """Tokens ``[start, stop)`` of each stream: all that were appended last, and ``window`` before them.

    It fills a buffer of about twice that, and then moves the last ``window`` tokens into a new one, so a token is moved
    once or twice.
    """

    def __init__(self, window: int, start: int = 0) -> None:
        self.window, self.start, self.stop = window, start, start
        self._streams: list[Tensor] = []  # ``[B, H, room, D]`` each

    @property
    def nbytes(self) -> int:
        """Bytes allocated, on the device."""
        return sum(stream.nbytes for stream in self._streams)

    def part(self, stream: int, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)`` ``[B, H, stop - start, D]``, a view; they must lie inside."""
        return self._streams[stream][:, :, start - self.start : stop - self.start]

    def append(self, streams: Sequence[Tensor]) -> None:
        """Add ``T`` tokens, ``[B, H, T, D]`` for each stream."""
        tokens = streams[0].shape[2]
        kept = min(self.stop - self.start, self.window)
        wanted = max(2 * self.window, kept + tokens) + SPARE
        room = self._streams[0].shape[2] if self._streams else 0
        # A long prefill chunk made it large and what follows is short, or it is full.
        if not self._streams or room > 2 * wanted + 128 or self.stop - self.start + tokens > room:
            with torch.inference_mode(False):  # written to later, perhaps outside inference mode
                new = [x.new_empty(*x.shape[:2], wanted, x.shape[3]) for x in streams]
            for n, stream in enumerate(new if kept else ()):
                stream[:, :, :kept] = self.part(n, self.stop - kept, self.stop)
            self.start, self._streams = self.stop - kept, new
        for stream, x in zip(self._streams, streams, strict=True):
            stream.narrow(2, self.stop - self.start, tokens).copy_(x)
        self.stop += tokens

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        self.start, self.stop = min(self.start, length), length

    @torch.inference_mode(False)  # written to later, perhaps outside inference mode
    def selected(self, rows: list[int]) -> Mirror:
        """A mirror of rows ``rows`` of the batch; this one if those are its own, as they often are between beams."""
        if not self._streams or rows == list(range(self._streams[0].shape[0])):
            return self
        new = copy(self)
        new._streams = [stream[rows] for stream in self._streams]
        return new

    @torch.inference_mode(False)
    def __deepcopy__(self, memo: dict[int, Any]) -> Mirror:
        new = copy(self)
        new._streams = [stream.clone() for stream in self._streams]
        return new
