"""What was measured as a table, what is chosen, and the preset that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from longspan.errors import LongspanError
from longspan.methods.parse import written
from longspan.model.preset import Identity, Preset
from longspan.terminal import Column, Sheet
from longspan_eval.figure import wilson
from longspan_eval.interval import half_width
from longspan_eval.sample import environment
from longspan_eval.tune.choice import Decision, choose
from longspan_eval.tune.halving import Outcome
from longspan_eval.tune.run import Tuning

NO_TIME = "not measured, for want of time"


@dataclass(frozen=True)
class Tried:
    """A candidate's figures.

    Attributes:
        method, window: as ``extend`` takes them; the window that it declares, in tokens.
        texts, found, asked: read, and questions answered right of those asked; ``interval`` is Wilson's of their ratio.
        perplexity: of the scored tokens. ratio: over the chosen candidate's on the texts that both read, and Student's
            interval of it over these texts, if there are several.
        read_ms, next_ms: milliseconds for a token that is read, and for one that is decoded.
        error: why it has no figures, else None.
    """

    method: str
    window: int
    texts: int = 0
    found: int = 0
    asked: int = 0
    interval: tuple[float, float] = (0.0, 1.0)
    perplexity: float | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    read_ms: float | None = None
    next_ms: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Tuned:
    """What a measurement came to.

    Attributes:
        choice: of ``rows``.
        preset: of the choice.
        compared: texts that the candidates were compared on which the choice was made from.
    """

    rows: tuple[Tried, ...]
    choice: Decision
    compared: int
    preset: Preset

    @property
    def line(self) -> str:
        """The call that runs the model as chosen."""
        return self.preset.by_hand

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        chosen = self.rows[self.choice.row]
        return {
            "use": self.line,
            "method": self.preset.spec,
            "window": self.preset.window,
            "chosen": asdict(chosen),
            "rule": self.why,
            "rows": [asdict(row) for row in self.rows],
        }

    @property
    def why(self) -> str:
        """How the rule came to its choice."""
        choice, rows = self.choice, self.rows
        where = f"on {self.compared} text{'s' if self.compared > 1 else ''} that all read"
        if len(choice.near) == 1:
            return f"{where}, it found most"
        most = rows[choice.most]
        last = (
            "it predicts best" if len(choice.alike) == 1 else f"of {len(choice.alike)} that predict alike it is fastest"
        )
        near = f"{len(choice.near)} found as many as {most.method} (window {most.window:,}) within one standard error"
        return f"{where}, {near}, and of these {last}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = "window", "texts", "found", "perplexity", "over", "ms read", "ms next"
        columns = [Column("method", style="cyan"), *(Column(head, "right") for head in heads)]
        chosen = self.rows[self.choice.row]
        begun = [row for row in self.rows if row.error != NO_TIME]
        order = sorted(begun, key=lambda row: (row is not chosen, -row.texts, -row.found / max(row.asked, 1)))
        yield Sheet(columns, [tuple(_cells(row, chosen=row is chosen)) for row in order])
        for row in begun:
            if row.error is not None:
                yield Text(f"{row.method}, window {row.window:,}: {row.error}")
        if left := [f"{row.method} ({row.window:,})" for row in self.rows if row.error == NO_TIME]:
            yield Text(f"{NO_TIME}: {', '.join(left)}")
        yield Text(f"chosen, the first row: {self.why}")


def report(tuning: Tuning, done: dict[tuple[int, int], Outcome], model: Identity) -> Tuned:
    """The table, the choice and the preset.

    Raises:
        LongspanError: fewer than two candidates were measured.
    """
    stands = tuning.standing(done)
    if len(stands.rows) < 2:
        raise LongspanError(_too_few(tuning, done))
    choice = choose(stands, done)
    rows = tuple(_row(tuning, done, row, choice.row) for row in range(len(tuning.specs)))
    chosen = rows[choice.row]
    beside = [_short(row, _BESIDE) for row in rows if row.asked and row is not chosen]
    evidence = {
        **_short(chosen, _CHOSEN),
        "compared_texts": stands.texts,
        "beside": beside,
        "text": tuning.book.name,
        "environment": environment(),
    }
    preset = Preset(
        chosen.method, None if chosen.window == model.window else chosen.window, tuning.length, model, evidence
    )
    return Tuned(rows, choice, stands.texts, preset)


def _too_few(tuning: Tuning, done: dict[tuple[int, int], Outcome]) -> str:
    ran = [one.seconds for one in done.values() if one.error is None]
    errors = sorted({one.error for one in done.values() if one.error is not None})
    failed = f"; {len(done) - len(ran)} candidates cannot run, the first: {errors[0]}" if errors else ""
    if not ran:
        return f"no candidate was measured{failed}"
    least = math.ceil(4 * max(ran) / 60)
    return (
        f"only one candidate was measured in {tuning.seconds / 60:g} minutes, and one alone is no choice: a text took "
        f"{max(ran):,.0f} s; give --minutes {least} or more, or a shorter --length{failed}"
    )


def _row(tuning: Tuning, done: dict[tuple[int, int], Outcome], row: int, chosen: int) -> Tried:
    spec = tuning.specs[row]
    method = spec.reaching(tuning.length)
    assert method is not None  # the stock model is no candidate
    name, window = written(method), spec.window or tuning.window
    own = {text: one for (which, text), one in done.items() if which == row}
    failed = next((one.error for one in own.values() if one.error is not None), None)
    good = {text: one for text, one in own.items() if one.error is None}
    if failed is not None or not good:
        return Tried(name, window, error=failed or NO_TIME)
    right = [value for one in good.values() for value in one.found]
    pairs = [one.loss - done[chosen, text].loss for text, one in good.items() if (chosen, text) in done]
    mean = fmean(pairs)
    half = half_width(pairs) if len(pairs) > 1 else None
    decoded = [one.decoded for one in good.values() if one.decoded is not None]
    return Tried(
        name,
        window,
        len(good),
        round(sum(right)),
        len(right),
        wilson(sum(right), len(right)),
        math.exp(fmean(one.loss for one in good.values())),
        math.exp(mean),
        None if half is None else (math.exp(mean - half), math.exp(mean + half)),
        1000 * fmean(one.read for one in good.values()),
        1000 * fmean(decoded) if decoded else None,
    )


_CHOSEN = "texts", "found", "asked", "interval", "perplexity", "read_ms", "next_ms"
_BESIDE = "method", "window", "found", "asked", "ratio"


def _short(row: Tried, names: tuple[str, ...]) -> dict[str, Any]:
    """Some of a row's figures as a preset has them, numbers in five digits."""
    return {name: _digits(value) for name in names if (value := getattr(row, name)) is not None}


def _digits(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_digits(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _cells(row: Tried, *, chosen: bool) -> Iterator[str]:
    yield row.method
    yield f"{row.window:,}"
    if row.perplexity is None or row.ratio is None or row.read_ms is None:
        yield from ("", "cannot run", "", "", "", "")
        return
    low, high = row.interval
    yield f"{row.texts}"
    yield f"{row.found}/{row.asked} ({100 * low:.0f}-{100 * high:.0f})"
    yield f"{row.perplexity:.2f}"
    between = "" if row.ratio_interval is None else f" ({row.ratio_interval[0]:.3f}-{row.ratio_interval[1]:.3f})"
    yield "1" if chosen else f"{row.ratio:.3f}{between}"
    yield f"{row.read_ms:.2f}"
    yield "-" if row.next_ms is None else f"{row.next_ms:.1f}"
