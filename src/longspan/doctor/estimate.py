"""The times at a length, from a run that read a part of it or all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.doctor.fit import (
    MARGIN,
    PREFILL_CHUNK,
    TOKEN_MARGIN,
    Line,
    ReadingPlan,
    Row,
    TimeRange,
    around,
    duration,
    tokens_row,
)
from longspan.doctor.measuring import NoEstimateError, Point, Run


@dataclass(frozen=True)
class Check:
    """A measured time beside the interval that was estimated from what was measured before it.

    Attributes:
        what: ``"reading"`` the tokens ``start : stop``, or ``"token"``, one after ``start``.
        seconds: measured.
        low, high: of the estimate.
    """

    what: str
    start: int
    stop: int
    seconds: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        return self.low <= self.seconds <= self.high


@dataclass(frozen=True)
class Estimate:
    """The times of reading and writing at the length that was asked for.

    Attributes:
        prefill_seconds: for all of it, read in prefill chunks of ``prefill_chunk`` tokens.
        growth: of that time with the length, ``"linear"`` or ``"quadratic"``.
        token_seconds: for the token after it.
        checks: of both, at a larger length than those they were estimated from; none if all of the text was read.
    """

    prefill_seconds: TimeRange
    growth: str
    token_seconds: TimeRange
    prefill_chunk: int
    checks: tuple[Check, ...]


def estimated(run: Run, plan: ReadingPlan) -> Estimate:
    """The estimate, if it was checked and the check holds.

    Raises:
        NoEstimateError: the check does not hold, or an interval is too wide to tell anything.
    """
    chunks = [point for point in run.prefill_chunks if point.start >= plan.fitted]
    read = sum(point.seconds for point in run.prefill_chunks)
    if plan.stop == plan.length:
        line = _line("reading", chunks) if len(chunks) > 1 else None
        token = run.tokens[-1].seconds
        return Estimate(
            around(read, read), _growth(line, plan.length), around(token, token, TOKEN_MARGIN), PREFILL_CHUNK, ()
        )
    reading, writing = _line("reading", chunks), _line("token", run.tokens)
    low, high = reading.range(tokens_row(plan.stop, plan.length))
    checks = _check("reading", chunks), _check("token", run.tokens)
    for failed in (check for check in checks if not check.holds):
        raise NoEstimateError(_failed(failed))
    made = Estimate(
        prefill_seconds=around(read + low, read + high),
        growth=_growth(reading, plan.length),
        token_seconds=around(*writing.range((1.0, float(plan.length))), TOKEN_MARGIN),
        prefill_chunk=PREFILL_CHUNK,
        checks=checks,
    )
    for what, interval in (("reading", made.prefill_seconds), ("a token", made.token_seconds)):
        if not interval.tells:
            raise NoEstimateError(
                f"the times of {what} vary too much to tell more than {duration(interval.low)} to "
                f"{duration(interval.high)}; run it again when other programs are quiet"
            )
    return made


def _rows(what: str, points: Sequence[Point]) -> list[Row]:
    return [tokens_row(p.start, p.stop) if what == "reading" else (1.0, float(p.start)) for p in points]


def _line(what: str, points: Sequence[Point]) -> Line:
    return Line(_rows(what, points), [point.seconds for point in points])


def _check(what: str, points: Sequence[Point]) -> Check:
    """Hold the last third of the chunks, or the last token, against the line through what was measured before."""
    last = len(points) - max(len(points) // 3, 1)
    line, late = _line(what, points[:last]), points[last:] if what == "reading" else points[-1:]
    rows = _rows(what, late)
    row = sum(x for x, _ in rows), sum(y for _, y in rows)
    said = around(*line.range(row), MARGIN if what == "reading" else TOKEN_MARGIN)
    return Check(what, late[0].start, late[-1].stop, sum(point.seconds for point in late), said.low, said.high)


def _growth(line: Line | None, length: int) -> str:
    """``"quadratic"`` if half of the time of ``length`` tokens or more grows so."""
    return "quadratic" if line is not None and line.b * length >= 2 * line.a else "linear"


def _failed(failed: Check) -> str:
    of = (
        f"tokens {failed.start:,} to {failed.stop:,}" if failed.what == "reading" else f"a token after {failed.start:,}"
    )
    return (
        f"{of} took {duration(failed.seconds)}, and what was measured before them said {duration(failed.low)} to "
        f"{duration(failed.high)}; run it again when other programs are quiet"
    )
