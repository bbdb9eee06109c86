"""What ``longspan eval`` leaves to read: ``results.json`` for programs, ``summary.md`` and pictures for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longspan import files
from longspan_eval.outcome import Outcome, as_perplexity
from longspan_eval.plan import Cell
from longspan_eval.results import environment, finite
from longspan_eval.study import Study
from longspan_eval.subject import Subject

Grid = Mapping[tuple[str, str, int], Outcome]  # by task, row, length


@dataclass(frozen=True)
class Pages:
    """A run's folder and all that its pages say besides the outcomes.

    Attributes:
        out: the folder.
        command: makes the same table.
        device: what computed it.
        threads: of each process.
    """

    out: Path
    study: Study
    subject: Subject
    cells: Sequence[Cell]
    command: str
    device: str
    threads: int

    def write(self, grid: Grid) -> None:
        """Write ``results.json`` and ``summary.md``; a reader finds the old or the new ones, never half a file."""
        body = json.dumps(finite(self._body(grid)), indent=1, allow_nan=False)
        files.write(self.out / "results.json", body + "\n")
        files.write(self.out / "summary.md", self._markdown(grid))

    def draw(self, grid: Grid) -> list[Path]:
        """Write the pictures: every task by row and length, and each task that knows depths by length and depth."""
        from longspan_eval import charts

        lengths, heads = self.study.lengths, [short_length(length) for length in self.study.lengths]
        rows = [row.label for row in self.study.rows]
        title = f"{self.subject.name}, trained on {self.subject.window:,} tokens"
        made = [self.out / "scores.png"]
        charts.overview(grid, [task.name for task in self.study.tasks], rows, lengths, heads, title, made[0])
        for task in self.study.tasks:
            if task.at_depths:
                made.append(self.out / f"heatmap-{task.name}.png")
                charts.by_depth(grid, task.name, rows, lengths, heads, f"{task.name}: {title}", made[-1])
        return made

    def _body(self, grid: Grid) -> dict[str, Any]:
        study = self.study
        return {
            "command": self.command,
            "model": asdict(self.subject),
            "environment": {**environment(), "threads": self.threads, "device": self.device},
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
                row.label: {
                    str(cell.length): cell.parameters
                    for cell in self.cells
                    if cell.row is row and cell.task is study.tasks[0]
                }
                for row in study.rows
            },
            "cells": [asdict(outcome) for outcome in grid.values()],
        }

    def _windows(self) -> dict[str, Any] | None:
        windows = self.study.windows
        if windows is None:
            return None
        texts = [{"name": name, "tokens": tokens} for name, tokens in windows.texts]
        return {"texts": texts, "stride": windows.stride, "mode": windows.mode}

    def _markdown(self, grid: Grid) -> str:
        study, subject = self.study, self.subject
        parts = [
            f"# {subject.name}: " + ", ".join(task.name for task in study.tasks),
            f"Window {subject.window:,} tokens, {subject.parameters:,} parameters in {subject.dtype}, weights "
            f"`{subject.sha256[:12]}`. {self._legend()}",
        ]
        for task in study.tasks:
            over = "" if task.measure == "score" else f": {study.windows}"
            parts += [f"**{task.name}**: {task.summary} ({task.paper}){over}", self._table(grid, task.name)]
        remarks = notes(grid)
        without = [task.name for task in study.tasks if not task.at_depths]
        if study.depths is not None and without:
            remarks.append(f"- No depth can be asked for in {', '.join(without)}.")
        remarks += _on_windows(study)
        if remarks:
            parts += ["**Notes**", "\n".join(remarks)]
        where = environment()
        said = ", ".join(f"{name} {where[name]}" for name in ("longspan", "torch", "transformers", "python"))
        parts.append(f"`{self.command}`\n\n{said}; {where['machine']}, {self.device}, seeds from {study.seed}.")
        return "\n\n".join(parts) + "\n"

    def _legend(self) -> str:
        """What a cell has in it."""
        kinds = {task.measure for task in self.study.tasks}
        said = []
        if "score" in kinds:
            said.append(
                "A cell is the mean score in percent, its 95% interval, and the number of prompts; lengths are tokens "
                "of prompt and answer."
            )
        if "perplexity" in kinds:
            said.append(
                "A cell of a perplexity is `exp` of the mean loss of the scored tokens, its 95% interval over the "
                "windows, and the number of windows; lengths are tokens of a window."
            )
        return " ".join(said)

    def _table(self, grid: Grid, task: str) -> str:
        lengths = self.study.lengths
        lines = ["| | " + " | ".join(f"{length:,}" for length in lengths) + " |"]
        lines.append("| --- |" + " ---: |" * len(lengths))
        for row in self.study.rows:
            cells = (cell_text(grid[task, row.label, length]) for length in lengths)
            lines.append(f"| `{row.label}` | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def _on_windows(study: Study) -> list[str]:
    if study.windows is None:
        return []
    if study.windows.mode == "new":
        return [
            "- All rows and lengths score the same tokens, so that their perplexities can be told apart more finely "
            "than by their intervals, which are mostly about the text."
        ]
    overlap = study.windows.stride < max(study.lengths)
    return ["- Windows of mode whole overlap: the intervals of perplexities are too narrow."] if overlap else []


def cell_text(cell: Outcome) -> str:
    """``98.0 (89.5-99.6) n=50``, with ``…`` while prompts are missing, or why there is no score."""
    if cell.mark is not None:
        return cell.mark
    low, high = cell.interval
    more = " …" if cell.n < cell.planned else ""
    if cell.measure == "perplexity":
        between = f" ({as_perplexity(low)}-{as_perplexity(high)})" if cell.n > 1 else ""
        return f"{as_perplexity(cell.score)}{between} n={cell.n}{more}"
    return f"{100 * cell.score:.1f} ({100 * low:.1f}-{100 * high:.1f}) n={cell.n}{more}"


def notes(grid: Grid) -> list[str]:
    """A line for each cell without a score, and one if cells are unfinished."""
    lines = [
        f"- {cell.task}, `{cell.row}` at {cell.length:,} tokens: {cell.error}"
        for cell in grid.values()
        if cell.error is not None
    ]
    unfinished = sum(cell.n < cell.planned and cell.error is None for cell in grid.values())
    if unfinished:
        lines.append(f"- {unfinished} of {len(grid)} cells are unfinished: `·` has no prompt yet, `…` not all of them.")
    return lines


def short_length(length: int) -> str:
    """``16k`` for 16,384; the number itself where it is no multiple of 1,024."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
