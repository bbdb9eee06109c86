"""How long prompts will take, from those that have been read."""

from __future__ import annotations

from collections.abc import Callable

from longspan_eval.plan import Ask
from longspan_eval.results import Sample

# Seconds of a token where nothing is known yet; it only weighs lengths against each other until the first sample.
UNKNOWN = 1.2e-4


class Pace:
    """Seconds by row, task and length, and what follows for others.

    Args:
        crossover: the length in tokens at which attention to everything costs as much as all the rest.
        linear: whether an ask's row attends to a fixed number of keys, so that its time grows with the length alone.
    """

    def __init__(self, crossover: float, linear: Callable[[Ask], bool]) -> None:
        self._crossover, self._linear = crossover, linear
        self._known: dict[tuple[str, str], dict[int, tuple[float, int]]] = {}

    def add(self, ask: Ask, sample: Sample) -> None:
        """Take in a sample; one without a result says nothing."""
        if sample.error is not None:
            return
        row, task = ask.row.label, ask.task.name
        for who in ((row, task), (row, ""), ("", task), ("", "")):
            lengths = self._known.setdefault(who, {})
            total, n = lengths.get(ask.length, (0.0, 0))
            lengths[ask.length] = total + sample.seconds, n + 1

    def of_row(self, ask: Ask) -> float | None:
        """Seconds, from samples of the same row, of the same task if there are any; None while there are none."""
        row, task = ask.row.label, ask.task.name
        return self._from((row, task), ask) or self._from((row, ""), ask)

    def guess(self, ask: Ask) -> float:
        """Seconds, from the samples that are most like it."""
        found = self.of_row(ask) or self._from(("", ask.task.name), ask) or self._from(("", ""), ask)
        return UNKNOWN * self.work(ask.length) if found is None else found

    def work(self, length: int) -> float:
        """About how much work a prompt of a length is under full attention, in tokens of a short one."""
        return length * (1 + length / self._crossover)

    def _from(self, who: tuple[str, str], ask: Ask) -> float | None:
        lengths = self._known.get(who)
        if not lengths:
            return None
        near = min(lengths, key=lambda length: abs(length - ask.length))
        total, n = lengths[near]
        growth = ask.length / near if self._linear(ask) else self.work(ask.length) / self.work(near)
        return total / n * growth


def duration(seconds: float) -> str:
    """``1.6 hours``, ``4.0 minutes``, ``12 seconds`` or ``0.4 seconds``."""
    if seconds > 5400:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"
