"""What ``longspan reproduce`` leaves to read: our figures beside the paper's, as Markdown, JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longspan import files
from longspan_eval.reproduce.charts import draw
from longspan_eval.reproduce.lab import Lab
from longspan_eval.reproduce.published import published
from longspan_eval.reproduce.run import Outcome, Plan
from longspan_eval.reproduce.table import Paper
from longspan_eval.results import Sample, environment, finite


@dataclass(frozen=True)
class Pages:
    """A run's folder, and what its pages say besides the figures.

    Attributes:
        out: the folder.
        command: makes the same tables.
        processor: what computed them.
    """

    out: Path
    paper: Paper
    lab: Lab
    plans: Sequence[Plan]
    command: str
    processor: str

    def write(self, samples: Mapping[str, Sample]) -> str:
        """Write ``results.json`` and ``summary.md``, and give the latter back; a reader never finds half a file."""
        text = self._markdown(samples)
        body = json.dumps(finite(self._body(samples)), indent=1, allow_nan=False, ensure_ascii=False)
        files.write(self.out / "results.json", body + "\n")
        files.write(self.out / "summary.md", text)
        return text

    def draw(self, samples: Mapping[str, Sample]) -> list[str]:
        """Draw what is to be drawn, and say which files; none without matplotlib."""
        if find_spec("matplotlib") is None:
            return []
        made: list[str] = []
        subject = self.lab.subject
        for plan in self.plans:
            table = plan.table
            if table.pictures is not None:
                made += table.pictures(self.lab, self.out)
            if table.chart is not None:
                title = f"{self.paper.name}, {table.title.lower()}: {subject.name}, window {subject.window:,}"
                path = self.out / f"{table.name}.png"
                if draw(plan.outcomes(samples), title, path):
                    made.append(path.name)
        return made

    def _head(self) -> dict[str, Any]:
        lab = self.lab
        return {
            "paper": {name: getattr(self.paper, name) for name in ("name", "title", "cite", "models", "hardware")},
            "command": self.command,
            "scale": lab.scale,
            "samples": lab.samples,
            "max_length": lab.max_length,
            "model": asdict(lab.subject),
            "environment": {**environment(), "device": self.processor},
        }

    def _body(self, samples: Mapping[str, Sample]) -> dict[str, Any]:
        return {
            **self._head(),
            "tables": {
                plan.table.name: {
                    "title": plan.table.title,
                    "where": plan.table.where,
                    "protocol": plan.protocol,
                    "cells": [_plain(one) for one in plan.outcomes(samples)],
                    "published": [one._asdict() for one in published(self.paper.name, plan.table.name)],
                }
                for plan in self.plans
            },
        }

    def _markdown(self, samples: Mapping[str, Sample]) -> str:
        subject, paper = self.lab.subject, self.paper
        where = environment()
        said = ", ".join(f"{name} {where[name]}" for name in ("longspan", "torch", "transformers", "python"))
        threads = "1 thread" if where["threads"] == 1 else f"{where['threads']} threads"
        parts = [
            f"# {paper.name} on {subject.name}",
            f"The tables of *{paper.title}* ({paper.cite}), with its parameters scaled from a window of "
            f"{paper.window:,} tokens to {subject.window:,}.",
            f"**Ours**: {subject.name}, {subject.parameters:,} parameters in {subject.dtype}, weights "
            f"`{subject.sha256[:12]}`; {said}; {where['machine']}, {self.processor}, {threads}. "
            f"**Published**: {paper.models}; {paper.hardware}. They are figures of different models: what can be "
            "compared is how the rows of one stand to each other.",
            _scale(self.lab),
            "Behind a figure stand its 95% interval and the number of prompts: Wilson's interval for scores, for other "
            "means a normal one over the prompts, for perplexities that of their mean losses. Times and memory are "
            "medians.",
            f"`{self.command}`",
        ]
        for plan in self.plans:
            parts.append(self._table(plan, plan.outcomes(samples)))
        return "\n\n".join(parts) + "\n"

    def _table(self, plan: Plan, outcomes: Sequence[Outcome]) -> str:
        table = plan.table
        parts = [f"## {table.title} ({table.where})", plan.protocol, matrix(outcomes)]
        remarks = notes(outcomes)
        if remarks:
            parts.append("\n".join(remarks))
        found = published(self.paper.name, table.name)
        if found:
            lines = ["| published | of | figure | read in |", "| --- | --- | --- | --- |"]
            lines += [f"| {one.row} | {one.column} | {one.figure} | {one.source} |" for one in found]
            parts.append("\n".join(lines))
        rest = "The paper's other figures are" if found else "The paper's figures are"
        if not table.whole:
            parts.append(f"{rest} not at hand: see {table.where} in {self.paper.cite}.")
        return "\n\n".join(parts)


def matrix(outcomes: Sequence[Outcome]) -> str:
    """The cells as a Markdown table; a row that has nothing but one reason to be empty is marked as such."""
    rows = list(dict.fromkeys(one.cell.row for one in outcomes))
    columns = list(dict.fromkeys(one.cell.column for one in outcomes))
    by_place = {(one.cell.row, one.cell.column): one.text for one in outcomes}
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in rows:
        cells = (by_place.get((row, column), "") for column in columns)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Why cells have no figure: a line for each reason, with the places that it holds for; and what is unfinished."""
    places: dict[str, list[Outcome]] = {}
    for one in outcomes:
        if one.reason is not None:
            places.setdefault(one.reason, []).append(one)
    lines = [f"- {_where(found, outcomes)}: {reason}." for reason, found in places.items()]
    unfinished = sum(one.planned > 0 for one in outcomes if one.reason is None)
    if unfinished:
        lines.append(
            f"- {unfinished} of {len(outcomes)} cells are unfinished: `·` has nothing yet, `…` not everything."
        )
    return lines


def _where(found: Sequence[Outcome], every: Sequence[Outcome]) -> str:
    rows = list(dict.fromkeys(one.cell.row for one in found))
    columns = list(dict.fromkeys(one.cell.column for one in found))
    if len(rows) == len({one.cell.row for one in every}):
        whole = len(columns) == len({one.cell.column for one in every})
        return "all cells" if whole else "; ".join(columns)
    named = "; ".join(rows) if len(rows) <= 4 else f"{'; '.join(rows[:3])} and {len(rows) - 3} rows more"
    return named if len(columns) == len({one.cell.column for one in every}) else f"{named} ({', '.join(columns)})"


def _scale(lab: Lab) -> str:
    said = {
        "paper": "Scale `paper`: as many prompts as the paper has.",
        "quick": "Scale `quick`: a few prompts a cell instead of the paper's, as each table says; its intervals say "
        "how little that is.",
    }[lab.scale]
    said += f" At most {lab.samples} a cell (`--samples`)." if lab.samples is not None else ""
    return said + (f" Nothing longer than {lab.max_length:,} tokens." if lab.max_length is not None else "")


def _plain(one: Outcome) -> dict[str, Any]:
    figure = one.figure
    made: dict[str, Any] = {"row": one.cell.row, "column": one.cell.column, "reason": one.reason}
    if figure is not None:
        made |= {"value": figure.value, "unit": figure.unit, "n": figure.n, "interval": figure.interval}
        made |= {"text": figure.text} if figure.text else {}
        made["finished"] = one.planned == 0
    return made
