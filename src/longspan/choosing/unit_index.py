"""The common part of indices that summarise units (chunks, blocks) of each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from longspan.choosing.ranks import AcrossRanks
from longspan.choosing.saved import Entries, SavedIndex, check_entries
from longspan.choosing.tail import Tail
from longspan.memory import Buffer


class UnitIndex(AcrossRanks):
    """Entries for the finished units of each row of a batch, and the inputs of those that are not finished yet.

    Attributes:
        tail: those inputs.
        per_unit: how many entries summarise a unit.
    """

    per_unit = 1

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._buffer = Buffer()
        self._finished: list[int] = []  # units of each row
        self._pads: tuple[int, ...] = ()  # padding tokens at the start of each row
        self._length = 0

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes + self.tail.nbytes

    def summaries(self, row: int) -> Tensor:
        """``[Hkv or S, n · per_unit, W]``, the entries of ``W`` numbers of a row's ``n > 0`` finished units."""
        return self._buffer.allocated[row, :, : self._finished[row] * self.per_unit]

    @property
    def finished(self) -> tuple[int, ...]:
        """How many units of each batch row are summarised."""
        return tuple(self._finished)

    def state(self) -> list[Tensor]:
        """All that is kept: the ``summaries`` of each row, and the inputs ``[B, H, T, D]`` of unfinished units."""
        return [*(self.summaries(row) for row, count in enumerate(self._finished) if count), *self.tail.state()]

    def save(self) -> SavedIndex:
        """See ``longspan.choosing.saved.SavableIndex``."""
        tail, finished = self.tail, self._finished[0] if self._finished else 0
        counts = {"length": [self._length], "done": [finished], "tail": [tail.start, tail.stop]}
        entries = self._buffer.first(finished * self.per_unit) if finished else None
        return SavedIndex(entries, tuple(tail.state()), counts)

    def most_entries(self, tokens: int) -> int:
        """See ``longspan.choosing.saved.SavableIndex``."""
        raise NotImplementedError

    def restore(self, saved: SavedIndex, entries: Entries | None, tokens: int) -> None:
        """See ``longspan.choosing.saved.SavableIndex``."""
        saved.check_length(tokens)
        finished = saved.count("done")
        check_entries(entries, expected=finished * self.per_unit, most=self.most_entries(tokens))
        start, stop = saved.counts["tail"]
        if stop != tokens:
            raise ValueError(f"its inputs end at token {stop}, and there are {tokens}")
        self.tail.restore(saved.inputs, start, stop, needed=self._first_of(finished))
        if entries is not None:
            self._buffer.block = entries.block
        self._finished, self._pads, self._length = [finished], (0,), tokens

    def _first_of(self, unit: int) -> int:
        """The first token of a unit, in a row without padding."""
        raise NotImplementedError

    def _begin(self, pads: Sequence[int]) -> None:
        self._finished = self._finished or [0] * len(pads)
        self._pads = tuple(pads)

    def _leave(self, finished: list[int], length: int) -> None:
        """Forget the tokens from ``length`` on, and all but so many units of each row."""
        self._buffer.crop(min(finished, default=0) * self.per_unit)
        self._finished, self._length = finished, length
        self.tail.crop(length)

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""
        order = rows.tolist()
        if self._finished:
            self._finished, self._pads = [self._finished[n] for n in order], tuple(self._pads[n] for n in order)
        self._buffer = self._buffer.selected(order)
        self.tail.select(rows)

    def reset(self) -> None:
        self._finished, self._pads, self._length = [], (), 0
        self._buffer.reset()
        self.tail.reset()


def equal_runs(pads: Sequence[int]) -> list[tuple[int, int, int]]:
    """Consecutive rows with equal padding, as ``(first, one past the last, padding)``, of which views are no copies."""
    edges = [0, *(n for n in range(1, len(pads)) if pads[n] != pads[n - 1]), len(pads)]
    return [(a, b, pads[a]) for a, b in pairwise(edges)]
