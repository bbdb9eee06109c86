"""Successive halving over candidates that read the same texts: what is read next, and who stands. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

FIRST = 0.4  # of the time, for the first text; the rounds after it are to have the rest
FINALISTS = 2  # candidates that are never halved; they read on while there is time


@dataclass(frozen=True)
class Outcome:
    """What a candidate made of one text.

    Attributes:
        found: of each question, 1.0 if it was answered right, else 0.0.
        loss: mean nats of the scored tokens.
        seconds: that measuring it took.
        read, decoded: seconds for a token that is read, and for one that is decoded; None if none was.
        error: why there is no result, else None.
    """

    found: tuple[float, ...] = ()
    loss: float = 0.0
    seconds: float = 0.0
    read: float = 0.0
    decoded: float | None = None
    error: str | None = None


Done = Mapping[tuple[int, int], Outcome]
"""Outcomes by candidate and text, both as numbers from 0."""


@dataclass(frozen=True)
class Standing:
    """How far a measurement is.

    Attributes:
        next: the candidate and the text to read now; None if there is no time or no text for more.
        rows: candidates that are compared, all of which have read the same ``texts`` first texts.
    """

    next: tuple[int, int] | None
    rows: tuple[int, ...]
    texts: int


def standing(count: int, done: Done, budget: float, texts: int) -> Standing:
    """What is next, from what is done alone, so that a measurement that was stopped goes on as it would have.

    Every candidate reads the first text, in their order, as long as the time for it lasts. Then the better half of
    those that have read the same texts, at least ``FINALISTS``, reads as many texts again, and so on. Nothing is begun
    that would, by what its candidate has taken so far, end after the budget, but for the first reading of all.

    Args:
        count: of candidates.
        done: the outcomes so far.
        budget: seconds for all.
        texts: how many there are, at least 1.
    """
    spent = sum(one.seconds for one in done.values())
    took: dict[int, list[float]] = {}
    for (row, _), one in done.items():
        if one.error is None:
            took.setdefault(row, []).append(one.seconds)
    usual = fmean(fmean(own) for own in took.values()) if took else 0.0

    first = sum(one.seconds for (_, text), one in done.items() if text == 0)

    def fits(rows: Sequence[int], before: float = spent, share: float = 1.0) -> bool:
        return before + sum(fmean(took.get(row, [usual])) for row in rows) <= share * budget

    rows: list[int] = []
    for row in range(count):
        outcome = done.get((row, 0))
        if outcome is None:
            if not done or (fits([row]) and (len(rows) < FINALISTS or fits([row], first, FIRST))):
                return Standing((row, 0), tuple(rows), 1)
            break
        if outcome.error is None:
            rows.append(row)
    read = 1
    while len(rows) > 1 and read < texts:
        better = ranked(rows, done, read)[: max(FINALISTS, (len(rows) + 1) // 2)]
        for text in range(read, min(2 * read, texts)):
            left = [row for row in better if (row, text) not in done]
            if left:
                return Standing((left[0], text) if fits(left) else None, tuple(rows), read)
            better = [row for row in better if done[row, text].error is None]
            if len(better) < FINALISTS:
                return Standing(None, tuple(rows), read)
            rows, read = better, text + 1
    return Standing(None, tuple(rows), read)


def ranked(rows: Sequence[int], done: Done, texts: int) -> list[int]:
    """Candidates by what they found in their first texts, of equals those first that predict better."""
    return sorted(rows, key=lambda row: (-found(row, done, texts), loss(row, done, texts), row))


def found(row: int, done: Done, texts: int) -> int:
    """Questions that a candidate answered right, over its first texts."""
    return round(sum(sum(done[row, text].found) for text in range(texts)))


def loss(row: int, done: Done, texts: int) -> float:
    """The mean loss of a candidate over its first texts, in nats."""
    return fmean(done[row, text].loss for text in range(texts))
