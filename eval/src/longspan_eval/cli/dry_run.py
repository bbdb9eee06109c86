"""``longspan eval --dry-run``: what would be measured, and how long it takes on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from longspan.cli.output import say
from longspan.terminal import Column, Sheet
from longspan_eval.estimate import duration
from longspan_eval.journal import read_samples
from longspan_eval.measure import Measure
from longspan_eval.session import Session
from longspan_eval.studies.eval_report import EvalReport


@dataclass(frozen=True)
class Planned:
    """The reading left under one method.

    Attributes:
        cells: with something left to read. prompts: of those. tokens: of the prompts and their answers, at most.
        seconds: that they take one after the other; those of one length as they took, of others in proportion.
    """

    row: str
    cells: int
    prompts: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class ReadingLeft:
    """The reading left, by method.

    Attributes:
        rows: one for each method.
        done: prompts that have been answered, without those that ended in an error.
        at_once: how many prompts are read at a time.
        basis: what the seconds follow from.
    """

    rows: tuple[Planned, ...]
    done: int
    at_once: int
    basis: str

    @property
    def whole(self) -> Planned:
        """All rows together."""
        each = self.rows
        return Planned(
            "all", sum(row.cells for row in each), sum(row.prompts for row in each), sum(row.tokens for row in each),
            sum(row.seconds for row in each),
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Until all of it is measured."""
        return self.whole.seconds / self.at_once

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        whole = self.whole
        return {
            "cells": whole.cells, "prompts": whole.prompts, "tokens": whole.tokens, "seconds": self.seconds,
            "done": self.done, "at_once": self.at_once, "basis": self.basis, "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [Column("row", style="cyan"), *(Column(name, "right") for name in ("cells", "prompts", "tokens"))]
        shown = [*self.rows, self.whole] if len(self.rows) > 1 else self.rows
        rows = [
            (row.row, f"{row.cells:,}", f"{row.prompts:,}", f"{row.tokens:,}", duration(row.seconds)) for row in shown
        ]
        yield Sheet([*columns, Column("about", "right")], rows)
        said = f"about {duration(self.seconds)}, {self.at_once} prompt{'s' if self.at_once > 1 else ''} at a time"
        yield Text(f"{said}; {self.done:,} prompts are answered. {self.basis}")


def estimate(report: EvalReport, session: Session, at_once: int, retry_errors: bool, console: Console) -> ReadingLeft:
    """The reading left and its time, from what is known; of a method of which nothing is, one prompt is read now.

    Args:
        report: of the run.
        session: reads a prompt here, with as many threads as the run has.
        at_once: how many prompts are to be read at a time.
        retry_errors: whether prompts that ended in an error are left, too.
    """
    plan, known = report.plan, read_samples(report.out / "samples.jsonl")
    pace = plan.pace(report.keys.subject, known)
    parts = plan.left(known, retry_errors=retry_errors, rank=report.study.rank())
    left = {spec: [one for part in parts for one in part if one.measure.spec == spec] for spec in report.study.specs}
    done = len({key for keys in plan.keys for key in keys if key in known and known[key].error is None})
    read: list[Measure] = []
    with _threads(report.threads):
        for spec, own in left.items():
            if not own or pace.of_method(own[0].measure) is not None:
                continue
            # A method is timed on its shortest prompt, twice: the first one pays for what is made once.
            shortest = min((one.measure for one in own), key=lambda one: one.length)
            say(console, f"reading a prompt of {shortest.length:,} tokens under {spec.label}")
            if session.measure(shortest).error is None:
                pace.add(shortest, session.measure(shortest))
                read.append(shortest)
    planned = []
    for spec, own in left.items():
        own = [one for one in own if plan.too_long(pace, one) is None]
        planned.append(
            Planned(
                spec.label,
                len({one.cell for one in own}),
                len(own),
                sum(one.measure.length for one in own),
                sum(pace.guess(one.measure) for one in own),
            )
        )
    return ReadingLeft(tuple(planned), done, at_once, _basis(read, done))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many threads as a worker has, for what is timed here to take as long as in one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _basis(read: Sequence[Measure], done: int) -> str:
    said = [f"samples of this run ({done:,} prompts)"] if done else []
    if read:
        lengths = sorted({one.length for one in read})
        where = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
        said.append(f"{len(read)} prompts of {where} tokens, read now")
    return f"Measured: {' and '.join(said)}; other lengths in proportion to their work." if said else "Nothing is left."
