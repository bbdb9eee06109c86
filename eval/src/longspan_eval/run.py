"""Measures what a plan has left: every sample on disk as soon as it is there, and a bar with an estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from longspan.hf.progress_bar import Prefill, following
from longspan_eval.estimate import Pace, duration
from longspan_eval.sample import Sample
from longspan_eval.schedule import CellPlan, Request
from longspan_eval.session import Session

Skip = Callable[[Request], "str | None"]  # why a request's cell is not to be measured, or None
Seen = Callable[[Request, Prefill], None]  # how far a prompt is that takes long
Measured = Generator[tuple[Request, Sample], None, None]


class Kept(Protocol):
    """Samples on disk, as a ``Journal`` keeps them.

    Attributes:
        samples: by key.
    """

    samples: dict[str, Sample]

    def append(self, key: str, sample: Sample) -> None:
        """Keep a sample. When this returns, killing the process cannot lose it."""


class Answers(Protocol):
    """Measures requests, as ``in_process``, ``workers.run`` and ``Cluster.run`` do.

    After an error, or a reason of ``skip``, which is then the sample's error, no more of a cell is measured.
    """

    def __call__(self, parts: Sequence[Sequence[Request]], *, skip: Skip) -> Measured: ...


def in_process(
    parts: Sequence[Sequence[Request]],
    *,
    session: Session,
    skip: Skip = lambda request: None,
    deadline: float | None = None,
    seen: Seen | None = None,
) -> Measured:
    """Measure in this process, on a model that is loaded.

    Args:
        deadline: a ``time.monotonic()`` after which nothing new is begun.
        seen: told now and then how far a prompt is that takes longer than two seconds.
    """
    ended: set[int] = set()
    try:
        for request in (request for part in parts for request in part):
            if request.cell in ended:
                continue
            if deadline is not None and time.monotonic() > deadline:
                return
            reason = skip(request)
            if reason is None:
                tell = None if seen is None else partial(_tell, seen, request)
                with nullcontext() if tell is None else following(session.model, tell):
                    sample = session.measure(request.measure)
            else:
                sample = request.measure.failed(reason)
            if sample.error is not None:
                ended.add(request.cell)
            yield request, sample
    finally:
        session.detach()


def _tell(seen: Seen, request: Request, now: Prefill | None) -> None:
    if now is not None:
        seen(request, now)


class Bar(Progress):
    """A bar over many measures, and below it how far one is that takes long."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(f"  {self.below}", style="dim")


class PromptWatch:
    """Told by what reads prompts how far they are."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = lambda line: None

    def __call__(self, request: Request, now: Prefill) -> None:
        measure = request.measure
        self.show(f"{measure.name}, {measure.spec.label}, {measure.length:,}: {now}")


def measure(
    plan: CellPlan,
    parts: Sequence[Sequence[Request]],
    journal: Kept,
    pace: Pace,
    answers: Answers,
    *,
    console: Console,
    at_once: int = 1,
    finished: Callable[[], None] = lambda: None,
    watch: PromptWatch | None = None,
) -> None:
    """Measure what is left.

    Args:
        pace: what is known of times; it learns from every sample.
        answers: with all but the parts and what to skip.
        at_once: how many prompts are read at a time, for the estimate.
    """
    waiting: dict[int, dict[str, Request]] = {}
    for part in parts:
        for request in part:
            waiting.setdefault(request.cell, {})[request.key] = request
    spent = 0.0

    def left() -> float:
        return sum(len(some) * pace.guess(next(iter(some.values())).measure) for some in waiting.values() if some)

    columns = (BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with (
        Bar(TextColumn("{task.description}"), *columns, TextColumn("{task.fields[left]}"), console=console) as bar,
        closing(answers(parts, skip=partial(plan.too_long, pace))) as measured,
    ):
        reading = bar.add_task("reading", total=left(), left="")
        if watch is not None:
            watch.show = partial(setattr, bar, "below")
        for request, sample in measured:
            bar.below = ""
            journal.append(plan.key_for(request, sample), sample)
            pace.add(request.measure, sample)
            spent += sample.seconds
            place, rest = plan.cells[request.cell].place, waiting[request.cell]
            if sample.error is not None:
                rest.clear()  # no more of this cell is measured
                console.print(f"{place}: {sample.error}", style="magenta", markup=False, highlight=False)
            else:
                rest.pop(request.key, None)
            more = left()
            about = f"about {duration(more / at_once)} left" if more else ""
            bar.update(reading, completed=spent, total=spent + more, description=place, left=about)
            if not rest:
                if sample.error is None:
                    figure = plan.figure(request.cell, journal.samples)
                    console.print(f"{place}: {figure}", markup=False, highlight=False)
                finished()
