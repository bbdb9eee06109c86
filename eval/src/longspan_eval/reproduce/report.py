"""The report of ``longspan reproduce``: our figures beside the paper's, as Markdown, JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longspan import files
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.reduce import mean_of_tasks
from longspan_eval.report import charts, markdown
from longspan_eval.report.depths import by_depth, depth_panels
from longspan_eval.report.markdown import Figures
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.published import Published, published
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, PaperPlan, PaperTable
from longspan_eval.sample import environment, finite
from longspan_eval.schedule import Samples


@dataclass(frozen=True)
class PaperReport:
    """A run's folder, and what its files say besides the figures."""

    out: Path
    paper: Paper
    session: PaperSession
    plans: Sequence[PaperPlan]
    command: str
    processor: str

    def write(self, samples: Samples) -> str:
        """Write ``results.json`` and ``summary.md``, and return the latter; a reader never finds half a file."""
        text = self._markdown(samples)
        body = json.dumps(finite(self._body(samples)), allow_nan=False, ensure_ascii=False)
        files.write(self.out / "results.json", body.replace(', {"row": ', ',\n{"row": ') + "\n")  # a cell a line
        files.write(self.out / "summary.md", text)
        return text

    def draw(self, samples: Samples) -> list[str]:
        """Draw the tables that are drawn, and return the names of the files."""
        names: list[str] = []
        subject = self.session.subject
        for plan in self.plans:
            table = plan.table
            if table.pictures is not None:
                names += table.pictures(self.session, self.out)
            title = f"{self.paper.name}, {table.title.lower()}: {subject.name}, window {subject.window:,}"
            path = self.out / f"{table.name}.png"
            if table.lines and charts.lines(plan.figures(samples), title, path):
                names.append(path.name)
            if table.depths and (panels := panels_by_depth(plan, samples)):
                charts.tiles(
                    panels, title, path, across=5, x="windows (tokens)", y="depth of the answer", label="found"
                )
                names.append(path.name)
        return names

    def _body(self, samples: Samples) -> dict[str, Any]:
        session = self.session
        return {
            "paper": {name: getattr(self.paper, name) for name in ("name", "title", "cite", "models", "hardware")},
            "command": self.command,
            "scale": session.scale,
            "scaled_to": "paper" if session.as_printed else "window",
            "samples": session.samples,
            "max_length": session.max_length,
            "model": asdict(session.subject),
            "environment": {**environment(), "device": self.processor},
            "tables": {
                plan.table.name: {
                    "title": plan.table.title,
                    "numbers": plan.table.numbers,
                    "protocol": plan.protocol,
                    "cells": [
                        _plain(cell, figure) | _depths(plan, n, figure, samples)
                        for n, (cell, figure) in enumerate(plan.figures(samples))
                    ],
                    "published": [asdict(one) for one in self._published(plan.table)],
                }
                for plan in self.plans
            },
        }

    def _markdown(self, samples: Samples) -> str:
        session, paper = self.session, self.paper
        subject, where = session.subject, environment()
        threads = "1 thread" if where["threads"] == 1 else f"{where['threads']} threads"
        parts = [
            f"# {paper.name} on {subject.name}",
            f"The tables of *{paper.title}* ({paper.cite}), called by its numbers{paper.numbering}. "
            f"{_numbers(session, paper, [plan.table for plan in self.plans])}{f' {paper.rows}' if paper.rows else ''}",
            f"**Ours**: {subject.name}, {subject.parameters:,} parameters in {subject.dtype}, weights "
            f"`{subject.sha256[:12]}`; {markdown.versions_line()}; {where['machine']}, {self.processor}, {threads}. "
            f"**Published**: {paper.models}; {paper.hardware}. They are figures of different models: what can be "
            "compared is how the rows of one stand to each other.",
            _scale(session),
            "Behind a figure stand its 95% interval and the number of prompts: Wilson's for scores, also for means of "
            "tasks and lengths, with each one's own variance, and for measured shares, with that of the prompts; "
            "Student's for other means, for perplexities that of the mean losses of windows without common tokens. "
            "Times and memory are medians. A length is in windows of this model, its tokens in brackets: "
            f"{session.in_windows(8 * subject.window)}.",
            f"`{self.command}`",
        ]
        for plan in self.plans:
            parts.append(self._table(plan, plan.figures(samples)))
        return "\n\n".join(parts) + "\n"

    def _table(self, plan: PaperPlan, figures: Figures) -> str:
        table = plan.table
        parts = [f"## {' and '.join(table.numbers)}: {table.title}", plan.protocol, markdown.table(figures)]
        remarks = notes(figures) + markdown.overlapping(figures)
        if remarks:
            parts.append("\n".join(remarks))
        return "\n\n".join([*parts, *map(_shown, self._published(table))])

    def _published(self, table: PaperTable) -> list[Published]:
        return [one for number in table.numbers for one in published(self.paper.name, number)]


def panels_by_depth(plan: PaperPlan, samples: Samples) -> list[charts.Panel]:
    """Tiles by depth and length for each row of which something is measured."""
    rows = {cell.row for cell in plan.cells if cell.measures} - {INSIDE}
    return depth_panels(
        plan,
        samples,
        lambda cell: cell.row in rows and cell.reduce is not mean_of_tasks,
        lambda cell: cell.column.replace(" (", "\n("),
    )


def _depths(plan: PaperPlan, n: int, figure: Figure, samples: Samples) -> dict[str, Any]:
    cell = plan.cells[n]
    if not plan.table.depths or figure.reason is not None:
        return {}
    parts = by_depth(cell, figure, plan.measured(n, samples))
    return {"depths": [{"depth": depth, "value": part.value, "n": part.n} for depth, _, part in parts]}


def _shown(one: Published) -> str:
    """A published table as Markdown."""
    if one.unread is not None or one.picture:
        why = "A picture, of which the text says no figure" if one.unread is None else f"Not at hand: {one.unread}"
        return f"**Published, {one.number}**: {one.title}. {why}.{f' {one.remark}' if one.remark else ''}"
    lines = [f"**Published, {one.number}**: {one.title}{f'; {one.unit}' if one.unit else ''}.", ""]
    rows = [["" if value is None else str(value) for value in row] for row in one.rows]
    lines.append(markdown.table_of(one.columns, rows))
    return "\n".join([*lines, "", one.remark] if one.remark else lines)


def notes(figures: Figures) -> list[str]:
    """Why cells have no figure: a line for each reason, with the places that it holds for; and what is unfinished."""
    places: dict[str, list[Cell]] = {}
    for cell, figure in figures:
        if figure.reason is not None:
            places.setdefault(figure.reason, []).append(cell)
    every = [cell for cell, _ in figures]
    return [f"- {_where(cells, every)}: {reason}." for reason, cells in places.items()] + markdown.unfinished(figures)


def _where(cells: Sequence[Cell], every: Sequence[Cell]) -> str:
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    whole = len(columns) == len({cell.column for cell in every})
    if len(rows) == len({cell.row for cell in every}):
        return "all cells" if whole else "; ".join(columns)
    named = "; ".join(rows) if len(rows) <= 4 else f"{'; '.join(rows[:3])} and {len(rows) - 3} rows more"
    return named if whole else f"{named} ({', '.join(columns)})"


def _numbers(session: PaperSession, paper: Paper, tables: Sequence[PaperTable]) -> str:
    window = f"{session.subject.window:,} tokens"
    said = f"Its numbers of tokens are scaled from a window of {paper.window:,} tokens to {window}."
    if session.as_printed:
        said = f"Its numbers of tokens are as it prints them; the model's window is {window}."
    for table in tables if session.scale_to != "paper" else ():
        if table.window not in (None, session.subject.window):
            said += f" Those of {table.number} are of a window of {table.window:,} tokens, and scaled from that."
    return said


def _scale(session: PaperSession) -> str:
    said = {
        "paper": "Scale `paper`: as many prompts as the paper has, or its benchmarks if it does not say.",
        "quick": "Scale `quick`: a few prompts a cell instead of the paper's, as each table says; its intervals say "
        "how little that is.",
    }[session.scale]
    said += f" At most {session.samples} a cell (`--samples`)." if session.samples is not None else ""
    return said + (f" Nothing longer than {session.max_length:,} tokens." if session.max_length is not None else "")


def _plain(cell: Cell, figure: Figure) -> dict[str, Any]:
    body: dict[str, Any] = {"row": cell.row, "column": cell.column, "reason": figure.reason}
    if figure.reason is None:
        body |= {"value": figure.value, "unit": figure.unit, "n": figure.n, "interval": figure.interval}
        body |= {"text": figure.text} if figure.text else {}
        body |= {"blocks": figure.blocks} if figure.unit == "perplexity" else {}
        body["finished"] = not figure.unfinished
    return body
