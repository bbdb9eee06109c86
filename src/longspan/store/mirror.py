"""The last tokens of a store whose keys and values lie elsewhere, kept on the device too."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from longspan.store.buffer import Buffer


class Mirror:
    """Tokens ``[start, stop)`` of each stream: all that were appended last, and ``window`` before them.

    It fills a buffer of about twice that, and then moves the last ``window`` tokens into a new one, so a token is moved
    once or twice.
    """

    def __init__(self, window: int, start: int = 0) -> None:
        self.window, self.start, self.stop = window, start, start
        self._buffers: list[Buffer] = []

    @property
    def nbytes(self) -> int:
        """Bytes allocated, on the device."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def part(self, stream: int, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)`` ``[B, H, stop - start, D]``, a view; they must lie inside."""
        return self._buffers[stream].allocated[:, :, start - self.start : stop - self.start]

    def append(self, streams: Sequence[Tensor]) -> None:
        """Add ``T`` tokens, ``[B, H, T, D]`` for each stream."""
        tokens = streams[0].shape[2]
        kept = min(self.stop - self.start, self.window)
        wanted = max(2 * self.window, kept + tokens)
        capacity = self._buffers[0].capacity if self._buffers else 0
        # A long piece made it large and what follows is short, or it is full.
        if not self._buffers or capacity > 2 * wanted + 256 or self.stop - self.start + tokens > capacity:
            start, new = self.stop - kept, []
            for n, x in enumerate(streams):
                new.append(Buffer())
                new[n].reserve(x, wanted)
                if kept:
                    new[n].write(0, self.part(n, start, self.stop))
            self.start, self._buffers = start, new
        first = self.stop - self.start
        for buffer, x in zip(self._buffers, streams, strict=True):
            buffer.write(first, x)
        self.stop += tokens

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        self.start, self.stop = min(self.start, length), length

    def select(self, rows: list[int]) -> Mirror:
        """A mirror of rows ``rows`` of the batch."""
        new = Mirror(self.window, self.start)
        new.stop = self.stop
        new._buffers = [buffer.selected(rows) for buffer in self._buffers]
        return new
