"""The times at a length, from a run that read a part of it or all of it."""

from __future__ import annotations

from dataclasses import dataclass

from longspan.doctor.fit import PREFILL_CHUNK, Check, Fit, Interval, Plan, around, check, duration, tokens_row
from longspan.doctor.measuring import NoEstimateError, Run


@dataclass(frozen=True)
class Estimate:
    """The times of reading and writing at the length that was asked for.

    Attributes:
        prefill_seconds: for all of it, read in prefill chunks of ``prefill_chunk`` tokens.
        growth: of that time with the length, ``"linear"`` or ``"quadratic"``.
        token_seconds: for the token after it.
        checks: of both, at a larger length than those they were estimated from; none if all of the text was read.
    """

    prefill_seconds: Interval
    growth: str
    token_seconds: Interval
    prefill_chunk: int
    checks: tuple[Check, ...]


def estimated(run: Run, plan: Plan) -> Estimate:
    """The estimate, if it was checked and the check holds.

    Raises:
        NoEstimateError: the check does not hold, or an interval is too wide to tell anything.
    """
    chunks = [point for point in run.prefill_chunks if point.start >= plan.fitted]
    read, rest = sum(point.seconds for point in run.prefill_chunks), (plan.stop, plan.length)
    if plan.stop == plan.length:
        line = (
            Fit([tokens_row(p.start, p.stop) for p in chunks], [p.seconds for p in chunks]) if len(chunks) > 1 else None
        )
        growth = "quadratic" if line is not None and line.b * plan.length >= 2 * line.a else "linear"
        return Estimate(around(read), growth, around(run.tokens[-1].seconds), PREFILL_CHUNK, ())
    checks, fits = [], []
    for what, points in (("reading", chunks), ("token", run.tokens)):
        rows = [tokens_row(p.start, p.stop) if what == "reading" else (1.0, float(p.start)) for p in points]
        spans, times = [(p.start, p.stop) for p in points], [p.seconds for p in points]
        checks.append(check(what, spans, rows, times))
        fits.append(Fit(rows, times))
    reading, token = fits
    more, one = tokens_row(*rest), (1.0, float(plan.length))
    made = Estimate(
        prefill_seconds=around(read + reading.at(more), reading.error(more)),
        growth="quadratic" if reading.b * plan.length >= 2 * reading.a else "linear",
        token_seconds=around(token.at(one), token.error(one)),
        prefill_chunk=PREFILL_CHUNK,
        checks=tuple(checks),
    )
    for one_check in checks:
        if not one_check.holds:
            raise NoEstimateError(_failed(one_check))
    for what, interval in (("reading", made.prefill_seconds), ("a token", made.token_seconds)):
        if not interval.tells:
            raise NoEstimateError(
                f"the times of {what} vary too much to tell more than {duration(interval.low)} to "
                f"{duration(interval.high)}; run it again when other programs are quiet"
            )
    return made


def _failed(failed: Check) -> str:
    of = (
        f"tokens {failed.start:,} to {failed.stop:,}" if failed.what == "reading" else f"a token after {failed.start:,}"
    )
    return (
        f"{of} took {duration(failed.seconds)}, and what was measured before them said {duration(failed.low)} to "
        f"{duration(failed.high)}; run it again when other programs are quiet"
    )
