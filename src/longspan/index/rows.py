"""What indices that summarise units (chunks, blocks) of each row have in common."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from longspan.index.tail import Tail
from longspan.store import Buffer


class UnitIndex:
    """Entries for the finished units of each row of a batch, and the inputs of those that are not finished yet.

    Attributes:
        tail: those inputs.
        parts: entries of a unit.
    """

    parts = 1

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._held = Buffer()
        self._done: list[int] = []  # finished units of each row
        self._pads: tuple[int, ...] = ()  # padding tokens at the start of each row
        self._length = 0

    @property
    def nbytes(self) -> int:
        return self._held.nbytes + self.tail.nbytes

    def summaries(self, row: int) -> Tensor:
        """``[He, n, W]``, the entries of a batch row's ``n`` finished units; there are some."""
        return self._held.allocated[row, :, : self._done[row] * self.parts]

    @property
    def finished(self) -> tuple[int, ...]:
        """How many units of each batch row are summarised."""
        return tuple(self._done)

    def state(self) -> list[Tensor]:
        """All that is kept: the summaries of each row, and the inputs of units that are not finished."""
        return [*(self.summaries(row) for row, done in enumerate(self._done) if done), *self.tail.state()]

    def _begin(self, pads: Sequence[int]) -> None:
        self._done = self._done or [0] * len(pads)
        self._pads = tuple(pads)

    def select(self, rows: Tensor) -> None:
        if self._done:
            order = rows.tolist()
            self._done, self._pads = [self._done[n] for n in order], tuple(self._pads[n] for n in order)
        self._held.select(rows)
        self.tail.select(rows)

    def repeat(self, times: int) -> None:
        self._done = [n for n in self._done for _ in range(times)]
        self._pads = tuple(n for n in self._pads for _ in range(times))
        self._held.repeat(times)
        self.tail.repeat(times)

    def reset(self) -> None:
        self._done, self._pads, self._length = [], (), 0
        self._held.reset()
        self.tail.reset()


def equal_runs(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive rows with equal padding, as ``(first, one past the last)``: views of the cache, never copies."""
    edges = [0, *(n for n in range(1, len(pads)) if pads[n] != pads[n - 1]), len(pads)]
    return list(zip(edges[:-1], edges[1:], strict=True))
