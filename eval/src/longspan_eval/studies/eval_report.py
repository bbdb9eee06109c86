"""The report of ``longspan eval``: ``results.json`` for programs, ``summary.md`` and pictures for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from longspan import files
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.measure import Keys, TaskPrompt
from longspan_eval.report import charts, markdown
from longspan_eval.report.depths import by_depth, depth_panels
from longspan_eval.report.markdown import Figures
from longspan_eval.sample import Sample, environment, finite
from longspan_eval.schedule import CellPlan, Samples
from longspan_eval.studies.eval import Evaluation
from longspan_eval.task import Task

LABELS = {"score": "score", "perplexity": "lowest / perplexity"}  # what the colours mean
SAID_UNTIMED = (
    "- Seconds in `results.json` leave out {} prompts, which are not known to have been read with `--kv-tier {}` and "
    "threads per process: {}."
)


@dataclass(frozen=True)
class EvalReport:
    """A run's folder and all that its files say besides the figures."""

    out: Path
    study: Evaluation
    keys: Keys
    plan: CellPlan
    command: str
    device: str
    threads: int
    kv_tier: str = "device"

    def write(self, samples: Samples) -> None:
        """Write ``results.json`` and ``summary.md``; a reader finds the old or the new ones, never half a file."""
        figures = self.plan.figures(samples)
        body = json.dumps(finite(self._body(figures, samples)), indent=1, allow_nan=False)
        files.write(self.out / "results.json", body + "\n")
        files.write(self.out / "summary.md", self._markdown(figures, samples))

    def draw(self, samples: Samples) -> list[Path]:
        """Draw the pictures: every task by method and length, and each that knows depths by length and depth."""
        study, subject, figures = self.study, self.keys.subject, self.plan.figures(samples)
        heads = [short_length(length) for length in study.lengths]
        title = f"{subject.name}, trained on {subject.window:,} tokens"
        kinds = sorted({task.measure for task in study.tasks}, reverse=True)
        panels = [charts.panel(task.name, _of(task, figures), heads) for task in study.tasks]
        pictures = [self.out / "scores.png"]
        charts.tiles(panels, title, pictures[0], label=", ".join(LABELS[kind] for kind in kinds))
        for task in study.tasks:
            if task.at_depths:
                pictures.append(self.out / f"heatmap-{task.name}.png")
                panels = depth_panels(
                    self.plan,
                    samples,
                    _of_table(task),
                    lambda cell: short_length(cell.measures[0].length),
                )
                name = f"{task.name}: {title}"
                charts.tiles(panels, name, pictures[-1], across=5, x="tokens", y="depth of the answer")
        return pictures

    def _body(self, figures: Figures, samples: Samples) -> dict[str, Any]:
        study = self.study
        return {
            "command": self.command,
            "model": asdict(self.keys.subject),
            "environment": {**environment(), "threads": self.threads, "kv_tier": self.kv_tier, "device": self.device},
            "tasks": {
                task.name: {
                    "version": task.version,
                    "measure": task.measure,
                    "paper": task.paper,
                    "new_tokens": task.new_tokens,
                    "data": None if task.data is None else task.data.name,
                    "records": len(study.records[task.name]) if task.name in study.records else None,
                    "depths": study.depths_of(task) if task.at_depths else None,
                }
                for task in study.tasks
            },
            "lengths": study.lengths,
            "samples": study.samples,
            "first_seed": study.seed,
            "max_full_seconds": study.max_full_seconds,
            "windows": self._windows(),
            "rows": {
                spec.label: {str(length): self.keys.parameters(spec, length) for length in study.lengths}
                for spec in study.specs
            },
            "cells": [
                self._cell(cell, figure, self.plan.measured(n, samples)) for n, (cell, figure) in enumerate(figures)
            ],
        }

    def _cell(self, cell: Cell, figure: Figure, samples: Sequence[Sample]) -> dict[str, Any]:
        own = [] if figure.reason is not None else samples
        timed = self._timed(own)
        (first, *_) = cell.measures
        assert isinstance(first, TaskPrompt)
        return {
            "task": cell.table,
            "row": cell.row,
            "multiple": first.length / self.keys.subject.window,
            "length": first.length,
            "planned": figure.planned,
            "n": figure.n,
            "score": figure.value,
            "interval": figure.interval,
            **({"blocks": figure.blocks} if figure.unit == "perplexity" else {}),
            "seconds": fmean(sample.seconds for sample in timed) if timed else math.nan,
            "timed": len(timed),
            "tokens": fmean(sample.tokens for sample in own) if own else math.nan,
            "depths": [
                {"low": low, "high": high, "n": part.n, "score": part.value, "interval": part.interval}
                for low, high, part in by_depth(cell, figure, own)
            ],
            "error": figure.reason,
            "measure": first.task.measure,
        }

    def _timed(self, samples: Iterable[Sample]) -> list[Sample]:
        """Those whose seconds are of this run's threads and storage of keys and values."""
        return [sample for sample in samples if sample.timed_under(self.kv_tier, self.threads)]

    def _untimed(self, samples: Samples) -> list[str]:
        every = {key: samples[key] for keys in self.plan.keys for key in keys if key in samples}
        read = [sample for sample in every.values() if sample.error is None]
        without = len(read) - len(self._timed(read))
        return [SAID_UNTIMED.format(f"{without:,} of {len(read):,}", self.kv_tier, self.threads)] if without else []

    def _windows(self) -> dict[str, Any] | None:
        windows = self.study.windows
        if windows is None:
            return None
        texts = [{"name": name, "tokens": tokens} for name, tokens in windows.texts]
        return {"texts": texts, "stride": windows.stride, "mode": windows.mode}

    def _markdown(self, figures: Figures, samples: Samples) -> str:
        study, subject = self.study, self.keys.subject
        parts = [
            f"# {subject.name}: " + ", ".join(task.name for task in study.tasks),
            f"Window {subject.window:,} tokens, {subject.parameters:,} parameters in {subject.dtype}, weights "
            f"`{subject.sha256[:12]}`. {self._legend()}",
        ]
        for task in study.tasks:
            over = "" if task.measure == "score" else f": {study.windows}"
            parts.append(f"**{task.name}**: {task.summary} ({task.paper}){over}")
            parts.append(markdown.table(_of(task, figures), code=True))
        remarks = [
            f"- {cell.table}, `{cell.row}` at {cell.column} tokens: {figure.reason}"
            for cell, figure in figures
            if figure.reason is not None
        ]
        remarks += markdown.unfinished(figures)
        without = [task.name for task in study.tasks if not task.at_depths]
        if study.depths is not None and without:
            remarks.append(f"- No depth can be asked for in {', '.join(without)}.")
        remarks += [*_on_windows(study), *markdown.overlapping(figures), *self._untimed(samples)]
        if remarks:
            parts += ["**Notes**", "\n".join(remarks)]
        parts.append(markdown.made_with(self.command, f"{self.device}, seeds from {study.seed}"))
        return "\n\n".join(parts) + "\n"

    def _legend(self) -> str:
        """The cells' contents."""
        kinds = {task.measure for task in self.study.tasks}
        said = []
        if "score" in kinds:
            said.append(
                "A cell is the mean score in percent, its 95% interval, and the number of prompts; lengths are tokens "
                "of prompt and answer."
            )
        if "perplexity" in kinds:
            said.append(
                "A cell of a perplexity is `exp` of the mean loss of the scored tokens, its 95% interval (Student's, "
                "over windows or blocks of them) and the number of windows; lengths are tokens of a window."
            )
        return " ".join(said)


def _of_table(task: Task) -> Callable[[Cell], bool]:
    return lambda cell: cell.table == task.name


def _of(task: Task, figures: Figures) -> Figures:
    return [(cell, figure) for cell, figure in figures if cell.table == task.name]


def _on_windows(study: Evaluation) -> list[str]:
    if study.windows is None or study.windows.mode != "new":
        return []
    return [
        "- All rows and lengths score the same tokens, so that their perplexities can be told apart more finely "
        "than by their intervals, which are mostly about the text."
    ]


def short_length(length: int) -> str:
    """``16k`` for 16,384; the number itself if it is no multiple of 1,024."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
