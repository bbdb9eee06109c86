"""Output of ``longspan analyze``: a table, figures as JSON, a picture and a page for each length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from longspan.calibration import RecallReport
from longspan.files import write
from longspan.hf import Report
from longspan.methods import Method
from longspan.methods.parse import written
from longspan.recording.page import chunk_texts, write_page
from longspan.terminal import Column, Sheet
from longspan_eval.analysis.pictures import draw_positions, draw_selection, relative_positions
from longspan_eval.analysis.study import Found, Inspection, LengthSummary
from longspan_eval.sample import finite, versions


@dataclass(frozen=True)
class Analyzed:
    """An analysis.

    Attributes:
        about: the model, the task and the seed.
        method: as it was asked for. report: what came of it on the model.
        rows: the figures of each length. inspections: what they are of, by length.
        recall: of the reduced scores; None if there are none.
    """

    about: Mapping[str, Any]
    method: Method
    report: Report
    rows: Sequence[LengthSummary]
    inspections: Mapping[int, Sequence[Inspection]]
    recall: RecallReport | None

    @property
    def kind(self) -> str:
        """The chooser: each head, each key head's group, or the layer."""
        method = self.report.method
        return str(getattr(method, "share", "head" if method.name == "lm-infinite" else "layer"))

    def write(self, out: Path, tokenizer: Any) -> list[str]:
        """Write all files into a folder, and return their names."""
        body = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write(out / "analysis.json", body + "\n")
        files = ["analysis.json"]
        for length, found in self.inspections.items():
            files += self._show(out, tokenizer, length, found[0])
        if self.recall is not None:
            self.recall.plot(out / "recall.png")
            files.append("recall.png")
        return files

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        lengths = []
        for row in self.rows:
            figures = {key: getattr(row, key) for key in ("tokens", "chunks", "cover", "gini", "hit1", "hit5")}
            answers = {key: _shares(getattr(row, key)) for key in ("found", "whole", "split")}
            prompts = [_prompt(one) for one in self.inspections[row.length]]
            lengths.append({"length": row.length, "n": row.n, **figures, **answers, "prompts": prompts})
        recall = self.recall
        found = None if recall is None else {"title": recall.title(), "rows": [asdict(row) for row in recall.rows]}
        method = {
            "name": self.report.method.name,
            "label": written(self.method),
            "parameters": _parameters(self.report.method),
            "chooses": self.kind,
        }
        whole = {**self.about, "window": self.report.window, "method": method, "versions": versions()}
        plain: dict[str, Any] = finite({**whole, "lengths": lengths, "recall": found})
        return plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = ("n", "chunks", "cover", "Gini", "hit@1", "hit@5", "found", "in one\nchunk", "split")
        columns = [Column("tokens", "right"), *(Column(name, "right") for name in names)]
        rows = [
            (
                f"{row.tokens:,.0f}",
                str(row.n),
                f"{row.chunks:,.0f}",
                _percent(row.cover),
                f"{row.gini:.2f}",
                *(_percent(value) for value in (row.hit1, row.hit5)),
                *(_found(value) for value in (row.found, row.whole, row.split)),
            )
            for row in self.rows
        ]
        title = f"{written(self.method)}, window {self.report.window:,}: at the first token of the answer"
        yield Sheet(columns, rows, title=title)
        if self.recall is not None:
            yield self.recall

    def _show(self, out: Path, tokenizer: Any, length: int, one: Inspection) -> list[str]:
        """The picture and the page of a length's first prompt."""
        label = written(self.method)
        title = f"{label}: what each {self.kind} keeps of {len(one.ids):,} tokens"
        method = self.report.method
        facts = {
            "model": self.about["model"],
            "method": ", ".join([method.name, *(f"{key}={value}" for key, value in _parameters(method).items())]),
            "chunks": f"{len(one.chunks):,}",
            "cover": f"{one.cover:.0%}",
            "Gini": f"{one.gini:.2f}",
        }
        if one.answers:
            facts |= {"answer in chunks": ", ".join(map(str, one.answers)), "hits in the best 5": _percent(one.hit5)}
        if self.about["task"] is not None:
            facts |= {"task": self.about["task"], "answered": one.prediction.strip() or "nothing"}
        page, picture = f"page-{length}.html", f"selection-{length}.png"
        texts = chunk_texts(tokenizer, one.ids, one.chunks)
        write_page(
            out / page, one.choices, one.chunks, texts, answers=one.answers, title=title, facts=facts, kind=self.kind
        )
        draw_selection(one.choices, one.chunks, out / picture, answers=one.answers, title=title, kind=self.kind)
        return [picture, page]


def positions(
    method: Method, resolved: Method, window: int, lengths: Sequence[int], out: Path
) -> tuple[dict[str, Any], list[str]]:
    """The relative positions of a method that keeps keys by their index: figures, and the files written to a folder.

    Args:
        method: as it was asked for. resolved: for the window.
        lengths: tokens of each matrix.
    """
    found = []
    for length in lengths:
        rel, keep = relative_positions(resolved, length)
        seen = int(keep.tril().sum())
        found.append(
            {
                "length": length,
                "kept": seen / (length * (length + 1) / 2),
                "largest_relative_position": int(rel[keep].max()),
            }
        )
    label = written(method)
    body = {
        "method": {"name": method.name, "label": label, "parameters": _parameters(resolved)},
        "window": window,
        "versions": versions(),
        "lengths": found,
    }
    out.mkdir(parents=True, exist_ok=True)
    write(out / "analysis.json", json.dumps(body, indent=1, ensure_ascii=False) + "\n")
    files = ["analysis.json"]
    for length in lengths:
        files.append(f"positions-{length}.png")
        draw_positions(resolved, length, out / files[-1], title=f"{label}, {length:,} tokens")
    return body, files


def _prompt(one: Inspection) -> dict[str, Any]:
    return {
        "seed": one.prompt.seed, "tokens": len(one.prompt.ids), "chunks": len(one.chunks),
        "answer_chunks": one.answers, "cover": one.cover, "gini": one.gini, "hit1": one.hit1, "hit5": one.hit5,
        "prediction": one.prediction, "score": one.score,
    }  # fmt: skip


def _shares(found: Found) -> dict[str, Any]:
    return {"found": found.found, "n": found.n, "interval": found.interval if found.n else None}


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _found(value: Found) -> str:
    low, high = value.interval
    return f"{value.found:g}/{value.n}\n{100 * low:.0f}-{high:.0%}" if value.n else "-"


def _parameters(method: Method) -> dict[str, Any]:
    """Those that have a value, as plain ones."""
    values = {key: value for key, value in method.parameters().items() if value is not None}
    return {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in values.items()}
