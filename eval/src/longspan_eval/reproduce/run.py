"""Measures a paper's tables one after the other; every sample is on disk as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longspan.errors import LongspanError, did_you_mean
from longspan.hf.prefill import Prefill, following
from longspan_eval.estimate import Pace
from longspan_eval.journal import Journal
from longspan_eval.measure import Bar
from longspan_eval.outcome import first_word
from longspan_eval.reproduce.figures import Figure
from longspan_eval.reproduce.lab import Lab, Measure
from longspan_eval.reproduce.measures import Asked
from longspan_eval.reproduce.table import Cell, Paper, Table, order
from longspan_eval.results import Sample
from longspan_eval.study import over_limit


@dataclass(frozen=True)
class Outcome:
    """What is known of a cell: its figure, how many samples it has of how many planned, or why it has none."""

    cell: Cell
    figure: Figure | None
    planned: int
    reason: str | None

    @property
    def text(self) -> str:
        """As a table has it; a cell without a figure says in a word why."""
        if self.cell.missing is not None:
            return self.cell.brief
        if self.reason is not None:
            return "out of memory" if self.reason == "out of memory" else first_word(self.reason)
        assert self.figure is not None
        return self.figure.shown(self.planned)


class Plan:
    """A table's cells on a lab, and the keys of what is measured for them."""

    def __init__(self, table: Table, lab: Lab) -> None:
        self.table = table
        self.protocol = table.protocol(lab)
        self.cells: Sequence[Cell] = table.cells(lab)
        places = [(cell.row, cell.column) for cell in self.cells]
        if len(set(places)) < len(places):
            raise RuntimeError(f"{table.name}: two cells have one place")
        self._keys = [tuple(lab.key(measure) for measure in cell.measures) for cell in self.cells]

    @cached_property
    def steps(self) -> list[tuple[str, Measure, int]]:
        """What to measure with its key, each once, in the order in which to do it; and the number of its cell."""
        by_identity = {
            id(measure): key
            for cell, keys in zip(self.cells, self._keys, strict=True)
            for measure, key in zip(cell.measures, keys, strict=True)
        }
        made: dict[str, tuple[str, Measure, int]] = {}
        for n, measure in order(self.cells, self.table.interleaved):
            key = by_identity[id(measure)]
            made.setdefault(key, (key, measure, n))
        return list(made.values())

    def failed(self, n: int, samples: Mapping[str, Sample]) -> bool:
        """Whether one of a cell's measures failed, so that the others would too."""
        return any(samples[key].error is not None for key in self._keys[n] if key in samples)

    def outcome(self, n: int, samples: Mapping[str, Sample]) -> Outcome:
        """The outcome of cell ``n``."""
        cell, keys = self.cells[n], dict.fromkeys(self._keys[n])
        if cell.missing is not None:
            return Outcome(cell, None, 0, cell.missing)
        if cell.figure is not None:
            return Outcome(cell, cell.figure, 0, None)
        have = [samples[key] for key in keys if key in samples]
        error = next((sample.error for sample in have if sample.error is not None), None)
        if error is not None:
            return Outcome(cell, None, len(keys), error)
        assert cell.show is not None
        figure = cell.show.reduce(have)
        # Of some samples a figure may not be (those that were not split, say): n of the figure is of what is planned
        # only while samples are missing.
        planned = len(keys) if len(have) < len(keys) else 0
        return Outcome(cell, figure, max(planned, figure.n + 1) if planned else 0, None)

    def outcomes(self, samples: Mapping[str, Sample]) -> list[Outcome]:
        """The outcome of every cell."""
        return [self.outcome(n, samples) for n in range(len(self.cells))]

    def left(self, samples: Mapping[str, Sample]) -> list[tuple[str, Measure, int]]:
        """What is still to measure."""
        return [step for step in self.steps if step[0] not in samples and not self.failed(step[2], samples)]


def select(paper: Paper, names: Sequence[str] | None) -> tuple[Table, ...]:
    """The tables of these names, in the paper's order; all unless given.

    Raises:
        LongspanError: there is no such table, or one is named twice.
    """
    if names is None:
        return paper.tables
    known = [table.name for table in paper.tables]
    for name in names:
        if name not in known:
            raise LongspanError(
                f"{paper.name} has no table {name!r}; it has {', '.join(known)}{did_you_mean(name, known)}"
            )
        if names.count(name) > 1:
            raise LongspanError(f"the table {name} is named twice")
    return tuple(table for table in paper.tables if table.name in names)


def run(
    plans: Sequence[Plan],
    lab: Lab,
    journal: Journal,
    *,
    console: Console,
    finished: Callable[[], None],
    deadline: float | None = None,
    max_full_seconds: float | None = None,
) -> bool:
    """Measure what is left.

    Args:
        finished: called after each table.
        deadline: a ``time.monotonic()`` after which nothing new is begun.
        max_full_seconds: cells of full attention whose prompts take longer are marked instead of measured.

    Returns:
        whether everything is measured.
    """
    whole = True
    pace = Pace(lab.subject.crossover, lambda ask: False)
    for plan in plans:
        for key, measure, _ in plan.steps:
            if isinstance(measure, Asked) and key in journal.samples:
                pace.add(measure.ask, journal.samples[key])
    try:
        for plan in plans:
            left = plan.left(journal.samples)
            name = plan.table.name
            with Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.completed} of {task.total}"),
                TimeElapsedColumn(),
                TextColumn("about"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=console,
                transient=True,
            ) as bar:
                reading = bar.add_task(name, total=len(left))
                for key, measure, n in left:
                    if deadline is not None and time.monotonic() > deadline:
                        whole = False
                        break
                    if not plan.failed(n, journal.samples):
                        watched = console.is_terminal and not console.quiet and isinstance(measure, Asked)
                        with following(lab.model, partial(_below, bar)) if watched else nullcontext():
                            sample = _measured(lab, measure, pace, max_full_seconds)
                        journal.append(key, sample)
                        if sample.error is not None:
                            cell = plan.cells[n]
                            console.print(
                                f"{name}, {cell.row}, {cell.column}: {sample.error}", style="magenta", markup=False
                            )
                    bar.advance(reading)
            console.print(f"{name}: {len(left)} measured" if left else f"{name}: nothing left to measure", markup=False)
            finished()
    finally:
        lab.detach()
    return whole


def _below(bar: Bar, now: Prefill | None) -> None:
    bar.below = "" if now is None else str(now)


def _measured(lab: Lab, measure: Measure, pace: Pace, limit: float | None) -> Sample:
    """The sample of a measure; one that says so where its time is over the limit."""
    if not isinstance(measure, Asked):  # a clock's own table is not spared the time that it is about
        return lab.measure(measure)
    reason = over_limit(pace, measure.ask, limit)
    sample = lab.measure(measure) if reason is None else Sample("", measure.length, 0, None, "", error=reason)
    pace.add(measure.ask, sample)
    return sample
