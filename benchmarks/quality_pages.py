"""The quality table as Markdown and as JSON."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from dataclasses import asdict

from longspan_eval import passkey, tables
from longspan_eval.filler import FILLERS
from longspan_eval.results import environment, finite
from longspan_eval.scored_passkey import DEPTHS, TARGETS
from quality_bars import Summaries
from quality_table import GRID_MULTIPLES, MULTIPLES, Quality


def markdown(table: Quality, grid: Summaries, bars: list[tuple[str, str]], args: argparse.Namespace) -> str:
    labels = [row.label for row in table.rows]
    if args.grid:  # best first

        def mean(label: str) -> float:
            rates = [cell.rate for (row, _, _), cell in grid.items() if row == label and cell.n]
            return sum(rates) / len(rates) if rates else -1.0

        labels.sort(key=mean, reverse=True)
    parts = [
        f"The bundled model (window {table.subject.window} tokens, weights `{table.subject.sha256[:12]}`), lengths in "
        "windows; a cell is right answers / prompts (95% Wilson interval in percent)."
    ]
    for filler in table.fillers:
        parts += [f"**Passkeys found over {filler}**", tables.found_table(grid, labels, table.multiples, filler)]
    for filler in table.fillers:
        window = next((cell.in_window for cell in grid.values() if cell.filler == filler), math.nan)
        heading = (
            f"**Perplexity of the last {TARGETS} tokens of {filler}**, against the same tokens in the window, stock"
        )
        if not math.isnan(window):
            heading += f" ({tables.number(window)}, by which each ratio is multiplied)"
        parts += [heading, tables.perplexity_table(grid, labels, table.multiples, filler)]
    if bars:
        parts += ["**Bars** (of each method the row that finds most at that length, of those asked most)"]
        parts += ["\n".join(f"- {what}: {judged}" for what, judged in bars)]
    remarks = tables.notes(grid)
    if remarks:
        parts += ["**Notes**", "\n".join(remarks)]
    where = environment()
    versions = ", ".join(f"{name} {where[name]}" for name in ("longspan", "torch", "transformers", "python"))
    parts.append(f"`{_command(args)}` ({versions}, {where['machine']}, one thread for each of the workers)")
    return "\n\n".join(parts) + "\n"


def as_json(table: Quality, grid: Summaries, bars: list[tuple[str, str]], args: argparse.Namespace) -> str:
    body = {
        "command": _command(args),
        "task": {"name": passkey.NAME, "version": passkey.VERSION, "scored_tokens": TARGETS, "depths": DEPTHS},
        "model": {"name": "longspan bundled", "sha256": table.subject.sha256, "window": table.subject.window},
        "first_seed": args.seed,
        "environment": environment(),
        "rows": {
            row.label: {
                f"{cell.multiple:g}x": cell.parameters
                for cell in table.cells
                if cell.row is row and cell.filler == table.fillers[0]
            }
            for row in table.rows
        },
        "cells": [{**asdict(cell), "rate": cell.rate} for cell in grid.values()],
        "bars": [{"bar": what, "result": judged} for what, judged in bars],
    }
    return json.dumps(finite(body), indent=1, allow_nan=False) + "\n"


def _command(args: argparse.Namespace) -> str:
    """The command that makes this table, without what does not change it."""
    words = ["python", "benchmarks/quality.py", *(["--grid"] if args.grid else [])]
    if args.rows:
        words += ["--rows", *args.rows]
    if args.lengths != (GRID_MULTIPLES if args.grid else MULTIPLES):
        words += ["--lengths", ",".join(f"{multiple:g}" for multiple in args.lengths)]
    if args.fillers != FILLERS:
        words += ["--fillers", ",".join(args.fillers)]
    words += [] if args.prompts is None else ["--prompts", str(args.prompts)]
    words += [] if args.seed == 0 else ["--seed", str(args.seed)]
    return shlex.join(words)
