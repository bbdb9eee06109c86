"""Runs a study: every sample on disk as soon as it is there, a bar with an estimate, pages that are never stale."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from longspan.hf.prefill import Prefill
from longspan_eval.estimate import Pace, duration
from longspan_eval.journal import Journal
from longspan_eval.outcome import Outcome, outcome
from longspan_eval.pages import cell_text
from longspan_eval.plan import Ask, Cell
from longspan_eval.results import Sample
from longspan_eval.study import Study
from longspan_eval.workers import Skip

Place = tuple[str, str, int]  # task, row, length


class Answers(Protocol):
    """Asks parts, as ``workers.run`` does."""

    def __call__(self, parts: Sequence[Sequence[Ask]], *, skip: Skip) -> Generator[tuple[Ask, Sample], None, None]: ...


class Bar(Progress):
    """A bar over many prompts, and below it how far one is that takes long.

    Attributes:
        below: what stands there.
    """

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(f"  {self.below}", style="dim")


class Watch:
    """What the readers of prompts tell how far they are, for whoever shows it.

    Attributes:
        show: takes a line.
    """

    def __init__(self) -> None:
        self.show: Callable[[str], None] = lambda line: None

    def __call__(self, ask: Ask, now: Prefill) -> None:
        self.show(f"{_words(_place_of(ask))}: {now}")


def outcomes(study: Study, cells: Sequence[Cell], samples: Mapping[str, Sample]) -> dict[Place, Outcome]:
    """The outcome of every cell."""
    return {_place(cell): outcome(cell, samples, study.skipped(cell, samples)) for cell in cells}


def measure(
    study: Study,
    cells: Sequence[Cell],
    parts: Sequence[Sequence[Ask]],
    journal: Journal,
    pace: Pace,
    answers: Answers,
    *,
    at_once: int,
    console: Console,
    finished: Callable[[], None],
    watch: Watch | None = None,
) -> None:
    """Ask what is left.

    Args:
        parts: from ``Study.left``.
        pace: from ``pace_of``; it learns from every sample.
        answers: ``workers.run`` or ``Cluster.run``, with all but the parts and what to skip.
        at_once: how many prompts are read at a time, for the estimate.
        finished: called after each cell that is done.
        watch: what ``answers`` tells how far prompts are.
    """
    waiting: dict[Place, list[Ask]] = {}
    for part in parts:
        for ask in part:
            waiting.setdefault(_place_of(ask), []).append(ask)
    whole = {_place(cell): cell for cell in cells}
    spent = 0.0

    def left() -> float:
        return sum(len(asks) * pace.guess(asks[0]) for asks in waiting.values() if asks)

    columns = (BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    count = sum(map(len, waiting.values()))
    console.print(f"{count:,} prompts to ask", highlight=False)
    with (
        Bar(TextColumn("{task.description}"), *columns, TextColumn("{task.fields[left]}"), console=console) as bar,
        closing(answers(parts, skip=lambda ask: study.too_long(pace, ask))) as asked,
    ):
        reading = bar.add_task("reading", total=left(), left="")
        if watch is not None:
            watch.show = partial(setattr, bar, "below")
        for ask, sample in asked:
            bar.below = ""
            journal.append(study.key_for(ask, sample), sample)
            pace.add(ask, sample)
            spent += sample.seconds
            place = _place_of(ask)
            asks = waiting[place]
            if sample.error is not None:
                asks.clear()  # no more of this cell is asked
                console.print(f"{_words(place)}: {sample.error}", style="magenta", markup=False, highlight=False)
            else:
                asks[:] = [other for other in asks if other.key != ask.key]
            more = left()
            bar.update(
                reading,
                completed=spent,
                total=spent + more,
                description=_words(place),
                left=f"about {duration(more / at_once)} left" if more else "",
            )
            if not asks:
                if sample.error is None:
                    cell = whole[place]
                    text = cell_text(outcome(cell, journal.samples, study.skipped(cell, journal.samples)))
                    console.print(f"{_words(place)}: {text}", markup=False, highlight=False)
                finished()


def _place(cell: Cell) -> Place:
    return cell.task.name, cell.row.label, cell.length


def _place_of(ask: Ask) -> Place:
    return ask.task.name, ask.row.label, ask.length


def _words(place: Place) -> str:
    task, row, length = place
    return f"{task} {row} at {length:,}"
