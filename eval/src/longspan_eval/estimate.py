"""How long measures will take, from those that have been made."""

from __future__ import annotations

from collections.abc import Iterable

from longspan_eval.measure import Measure, TaskPrompt
from longspan_eval.sample import Sample
from longspan_eval.spec import STOCK, MethodSpec
from longspan_eval.subject import Subject

# Seconds of a token while nothing is known; it only weighs lengths against each other until the first sample.
UNKNOWN = 1.2e-4
FULL = (STOCK, "full")  # what --max-full-seconds is about: the control of an experiment, and its most expensive part
SKIPPED = "skipped"  # how the error of a cell begins that was not worth its time


class Pace:
    """Seconds by method, name and length of a measure, and what follows for others.

    Args:
        subject: the model.
        samples: measures that have been made, with their samples.
    """

    def __init__(self, subject: Subject, samples: Iterable[tuple[Measure, Sample]] = ()) -> None:
        self._subject = subject
        self._known: dict[tuple[str, str], dict[int, tuple[float, int]]] = {}
        self._linear: dict[MethodSpec, bool] = {}
        for measure, sample in samples:
            self.add(measure, sample)

    def add(self, measure: Measure, sample: Sample) -> None:
        """Take in a sample; one without a result says nothing."""
        if sample.error is not None:
            return
        method, name = measure.spec.label, measure.name
        for place in ((method, name), (method, ""), ("", name), ("", "")):
            lengths = self._known.setdefault(place, {})
            total, n = lengths.get(measure.length, (0.0, 0))
            lengths[measure.length] = total + sample.seconds, n + 1

    @property
    def knows_nothing(self) -> bool:
        """Whether no sample says how long anything takes."""
        return not self._known

    def of_method(self, measure: Measure) -> float | None:
        """Seconds, from samples of the same method, of the same name if there are any; None while there are none."""
        method = measure.spec.label
        return self._from((method, measure.name), measure) or self._from((method, ""), measure)

    def guess(self, measure: Measure) -> float:
        """Seconds, from the samples that are most like it."""
        known = self.of_method(measure) or self._from(("", measure.name), measure) or self._from(("", ""), measure)
        return UNKNOWN * self.work(measure.length) if known is None else known

    def work(self, length: int) -> float:
        """About how much work a prompt of a length is under full attention, in tokens of a short one."""
        return length * (1 + length / self._subject.crossover)

    def _from(self, place: tuple[str, str], measure: Measure) -> float | None:
        lengths = self._known.get(place)
        if not lengths:
            return None
        near = min(lengths, key=lambda length: abs(length - measure.length))
        total, n = lengths[near]
        bounded = self._bounded(measure.spec)
        growth = measure.length / near if bounded else self.work(measure.length) / self.work(near)
        return total / n * growth

    def _bounded(self, spec: MethodSpec) -> bool:
        """Whether a query attends to a fixed number of keys, however long the text."""
        if spec not in self._linear:
            window = self._subject.window
            try:
                method = spec.method
                self._linear[spec] = method is not None and method.resolve(window).selection(window).budget is not None
            except ValueError:
                self._linear[spec] = False  # the parameters do not fit the window, which attaching the method says
        return self._linear[spec]


def takes_all(measure: Measure) -> bool:
    """Whether it is a prompt read under full attention. What is timed for its own sake is not."""
    return isinstance(measure, TaskPrompt) and measure.spec.name in FULL


def over_limit(pace: Pace, measure: Measure, limit: float | None) -> str | None:
    """Why a prompt under full attention is not worth its time, or None; ``limit`` in seconds, None for no limit."""
    seconds = pace.of_method(measure) if limit is not None and takes_all(measure) else None
    if seconds is None or limit is None or seconds <= limit:
        return None
    return f"{SKIPPED}: a prompt takes about {duration(seconds)}, more than --max-full-seconds {limit:g}"


def duration(seconds: float) -> str:
    """``1.6 hours``, ``4.0 minutes``, ``12 seconds`` or ``0.4 seconds``."""
    if seconds > 5400:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"
