"""Measures candidates until the time is over, every sample on disk as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from longspan_eval.measure import Keys
from longspan_eval.reading import PlantedReading
from longspan_eval.run import Kept
from longspan_eval.sample import Sample
from longspan_eval.session import Session
from longspan_eval.spec import MethodSpec
from longspan_eval.tune.book import KIND, MOST, Book
from longspan_eval.tune.halving import Outcome, Standing, standing


@dataclass(frozen=True)
class Tuning:
    """What is measured.

    Attributes:
        window: the model's, in tokens; that of candidates that declare none.
        length: of a text with a question and its answer, in tokens.
        seconds: for all of it.
    """

    specs: Sequence[MethodSpec]
    window: int
    length: int
    book: Book
    seconds: float

    def reading(self, row: int, text: int) -> PlantedReading:
        spec = self.specs[row]
        return PlantedReading(spec, self.length, text, kind=KIND, window=spec.window or self.window, texts=self.book)

    def standing(self, done: dict[tuple[int, int], Outcome]) -> Standing:
        return standing(len(self.specs), done, self.seconds, MOST)


Begun = Callable[[PlantedReading, float], None]


def measure(
    tuning: Tuning,
    session: Session,
    keys: Keys,
    journal: Kept,
    done: dict[tuple[int, int], Outcome],
    begun: Begun = lambda reading, spent: None,
) -> None:
    """Measure what is left, or take it from the journal.

    Args:
        done: takes the outcomes, also those before an interrupt.
        begun: told of every reading that begins, and the seconds spent before.
    """
    while (place := tuning.standing(done).next) is not None:
        reading = tuning.reading(*place)
        key = keys(reading)
        if key not in journal.samples:
            begun(reading, sum(one.seconds for one in done.values()))
            began = time.perf_counter()
            sample = session.measure(reading)
            journal.append(key, replace(sample, seconds=time.perf_counter() - began))
        done[place] = outcome(journal.samples[key])


def outcome(sample: Sample) -> Outcome:
    """What a sample of a ``PlantedReading`` says."""
    if sample.error is not None:
        return Outcome(seconds=sample.seconds, error=sample.error)
    figures = sample.figures
    # Rounded as a journal keeps them, so that a measurement that goes on is the same as one that was not stopped.
    loss, seconds = round(sample.loss, 6), round(sample.seconds, 4)
    decoded = figures["decoded"]
    return Outcome(
        tuple(figures[f"found{n}"] for n in range(round(figures["asked"]))),
        loss,
        seconds,
        figures["read_seconds"] / sample.tokens,
        figures["decode_seconds"] / decoded if decoded else None,
    )
