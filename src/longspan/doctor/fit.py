"""From measured prefill chunks to an interval for a longer text: which to measure, a line, its error, and its check.

A method costs each token ``a + b · n`` seconds after ``n`` others: ``b`` is of the keys that a token attends to or
scores. A method that does not read every key has one line inside the window, where it does, and another beyond it. So
its line goes through chunks on the side of the window that the end of the text is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

PREFILL_CHUNK = 2048  # tokens
FEWEST = 3  # fitted chunks: two for a line, and one to check it
NOISE = 0.03  # of a chunk's time: the least standard deviation that is believed
# Of any time: what changes from one run to the next. A token reads all weights and keys from memory, which other
# programs share, and those of a long text lie in no processor cache.
MARGIN, TOKEN_MARGIN = 0.1, 0.2
AIM = 0.15  # of a text's time: the most that noise may make of the line, before it is measured
WIDEST = 3.0  # high over low; an interval that is wider tells nothing

Row = tuple[float, float]
"""What a time has of ``a`` and of ``b``."""


def duration(seconds: float) -> str:
    """``2.1 hours``, ``4.0 minutes``, ``12 seconds`` or ``8.1 ms``."""
    if seconds > 5400:
        return f"{seconds / 3600:,.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    if seconds >= 1:
        return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"
    return f"{seconds * 1e3:.1f} ms"


@dataclass(frozen=True)
class TimeRange:
    """Seconds from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean: as many times ``low`` as ``high`` is of it."""
        return sqrt(self.low * self.high)

    @property
    def tells(self) -> bool:
        """Whether it is narrow enough to be of use."""
        return 0 < self.high <= WIDEST * self.low


def around(low: float, high: float, margin: float = MARGIN) -> TimeRange:
    """The range of a time from ``low`` to ``high`` seconds that may change by a factor of ``1 + margin``."""
    return TimeRange(low / (1 + margin), high * (1 + margin))


def tokens_row(start: int, stop: int) -> Row:
    """Of the tokens ``start : stop`` together."""
    return float(stop - start), (stop - start) * (start + stop) / 2


def _spread(rows: Sequence[Row], at: Row) -> float:
    """The standard error of the fit's value ``at`` a row, in standard deviations of a measured time."""
    p, q, r = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    return sqrt(max(r * at[0] ** 2 - 2 * q * at[0] * at[1] + p * at[1] ** 2, 0.0) / (p * r - q * q))


class Line:
    """The least squares line through times, of which neither part is negative.

    Args:
        rows: what each time has of ``a`` and ``b``; two at least, which differ.
        times: in seconds.
    """

    def __init__(self, rows: Sequence[Row], times: Sequence[float]) -> None:
        self.rows = rows
        p, q, r = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
        u, v = (sum(x[i] * y for x, y in zip(rows, times, strict=True)) for i in (0, 1))
        self.a, self.b = (r * u - q * v) / (p * r - q * q), (p * v - q * u) / (p * r - q * q)
        if self.b < 0:
            self.a, self.b = u / p, 0.0
        elif self.a < 0:
            self.a, self.b = 0.0, v / r
        noise = NOISE * sum(times) / len(times)
        if len(rows) > 2:
            squares = sum((y - self.at(x)) ** 2 for x, y in zip(rows, times, strict=True))
            noise = max(noise, sqrt(squares / (len(rows) - 2)))
        self.noise = noise

    def at(self, row: Row) -> float:
        """Seconds of a row."""
        return self.a * row[0] + self.b * row[1]

    def error(self, row: Row) -> float:
        """Its standard error in seconds."""
        return self.noise * _spread(self.rows, row)

    def range(self, row: Row) -> tuple[float, float]:
        """Seconds of a row, by two standard errors, from low to high.

        It is no more than the last row's time allows: of which all is ``a``, or all is ``b``.
        """
        value, off, last = self.at(row), 2 * self.error(row), self.rows[-1]
        ends = sorted(self.at(last) * x / y for x, y in zip(row, last, strict=True))
        return max(value - off, ends[0]), min(value + off, ends[1])


@dataclass(frozen=True)
class ReadingPlan:
    """What is measured for a text.

    Attributes:
        length: tokens of the text. stop: those that are read of it.
        fitted: the token from which on chunks are fitted.
    """

    length: int
    stop: int
    fitted: int

    @property
    def prefill_chunks(self) -> list[tuple[int, int]]:
        """``0 : stop`` in prefill chunks."""
        return [(n, min(n + PREFILL_CHUNK, self.stop)) for n in range(0, self.stop, PREFILL_CHUNK)]


def plan(length: int, window: int, *, dense: bool) -> ReadingPlan:
    """As few chunks as tell the time of ``length`` tokens, or all of them if that takes all.

    Args:
        dense: whether the method reads every key, and so has one line inside the window and beyond it.
    """
    size = PREFILL_CHUNK
    beyond = -(-window // size) * size
    quarter = max(-(-window // 4 // size) - 1, 0) * size  # so that the first length is a quarter of the window
    seen = beyond if length > window else quarter
    fitted = quarter if dense else seen
    stop = seen + FEWEST * size
    while stop < length:
        rows = [tokens_row(n, n + size) for n in range(fitted, stop, size)]
        if 2 * NOISE * size * _spread(rows, tokens_row(stop, length)) <= AIM * length:
            break
        stop += size
    return ReadingPlan(length, min(stop, length), fitted)
