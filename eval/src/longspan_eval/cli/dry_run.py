"""``longspan eval --dry-run``: what would be measured, and how long it takes, by what the run has measured."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from longspan.terminal import Column, Sheet
from longspan_eval.estimate import duration
from longspan_eval.journal import read_samples
from longspan_eval.studies.eval_report import EvalReport
from longspan_eval.subject import Subject


@dataclass(frozen=True)
class Planned:
    """The reading left under one method.

    Attributes:
        cells: with something left to read. prompts: of those. tokens: of the prompts and their answers, at most.
        seconds: that they take one after the other; those of one length as they took, of others in proportion. None
            while nothing is measured.
    """

    row: str
    cells: int
    prompts: int
    tokens: int
    seconds: float | None


@dataclass(frozen=True)
class ReadingLeft:
    """The reading left, by method.

    Attributes:
        rows: one for each method.
        done: prompts that have been answered, without those that ended in an error.
        at_once: how many prompts are read at a time.
    """

    rows: tuple[Planned, ...]
    done: int
    at_once: int

    @property
    def whole(self) -> Planned:
        """All rows together."""
        each = self.rows
        return Planned(
            "all", sum(row.cells for row in each), sum(row.prompts for row in each), sum(row.tokens for row in each),
            None if any(row.seconds is None for row in each) else sum(row.seconds or 0 for row in each),
        )  # fmt: skip

    @property
    def seconds(self) -> float | None:
        """Until all of it is measured; None while nothing is."""
        whole = self.whole.seconds
        return None if whole is None else whole / self.at_once

    @property
    def basis(self) -> str:
        """What the seconds follow from."""
        if self.done:
            return f"Measured: samples of this run ({self.done:,} prompts); other lengths in proportion to their work."
        return "Nothing is left." if self.seconds == 0 else "Nothing is measured yet, which the time would follow from."

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
            (row.row, f"{row.cells:,}", f"{row.prompts:,}", f"{row.tokens:,}", _about(row.seconds)) for row in shown
        ]
        yield Sheet([*columns, Column("about", "right")], rows)
        said = f"about {_about(self.seconds)}, {self.at_once} prompt{'s' if self.at_once > 1 else ''} at a time"
        yield Text(f"{said}; {self.done:,} prompts are answered. {self.basis}")


def _about(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else duration(seconds)


def known_subject(out: Path, model: Any, tokenizer: Any, window: int | None) -> Subject:
    """The subject of a model without weights, whose hash is that in the results of a run if all else is the same."""
    bare = Subject.of(model, tokenizer, window=window, sha256="")
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = Subject(**json.loads((out / "results.json").read_bytes())["model"])
        if replace(kept, sha256="") == bare:
            return kept
    return bare


def estimate(report: EvalReport, at_once: int, retry_errors: bool) -> ReadingLeft:
    """The reading left and its time, from the samples of the run so far; no model runs.

    Args:
        report: of the run.
        at_once: how many prompts are to be read at a time.
        retry_errors: whether prompts that ended in an error are left, too.
    """
    plan, known = report.plan, read_samples(report.out / "samples.jsonl")
    pace = plan.pace(report.keys.subject, known)
    parts = plan.left(known, retry_errors=retry_errors, rank=report.study.rank())
    done = len({key for keys in plan.keys for key in keys if key in known and known[key].error is None})
    planned = []
    for spec in report.study.specs:
        own = [one for part in parts for one in part if one.measure.spec == spec]
        own = [one for one in own if plan.too_long(pace, one) is None]
        seconds = None if own and pace.knows_nothing else sum(pace.guess(one.measure) for one in own)
        cells, tokens = len({one.cell for one in own}), sum(one.measure.length for one in own)
        planned.append(Planned(spec.label, cells, len(own), tokens, seconds))
    return ReadingLeft(tuple(planned), done, at_once)
