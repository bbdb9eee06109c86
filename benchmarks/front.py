"""The tables of docs/results.md, from results/quality/quality.json.

python benchmarks/blocks.py                # puts them between their marks, after benchmarks/quality.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import between

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "quality" / "quality.json"
MARKS = "<!-- quality -->", "<!-- /quality -->"
FILLER = "prose"
ALL = {
    "stock": "stock",
    "pi": "`pi`",
    "ntk": "`ntk`",
    "dynamic-ntk": "`dynamic-ntk`",
    "string": "`string`",
    "yarn": "`yarn`",
    "streaming-llm": "`streaming-llm`",
    "lm-infinite": "`lm-infinite`",
    "infllm": "`infllm`",
    "rerope": "`rerope`",
    "self-extend": "`self-extend`",
    "dca": "`dca`",
    "longheads": "`longheads`, the paper's score",
    "longheads:score=bounds": '`longheads`, `score="bounds"`',
    "longheads:score=token_max": '`longheads`, `score="token_max"`',
    "esa": "`esa`",
    "esa:calibration=bundled": "`esa` with a calibration",
}
TASKS = {
    "ruler-niah-single-1": "one number in noise",
    "ruler-niah-single-2": "one number in prose",
    "ruler-niah-single-3": "one UUID in prose",
    "ruler-niah-multikey-1": "one of four keys",
    "ruler-niah-multiquery": "four keys at once",
    "facts": "facts in plain words",
    "key-value": "one of 16 JSON pairs",
    "vt-2-hops": "a chain of two hops",
    "vt-2-hops-2-chains": "one of two such chains",
}
# Columns of the tables of tasks: all rows but those that are at 0%, or nearly, in every task.
OF_TASKS = {
    "dca": "DCA",
    "longheads:score=bounds": 'LongHeads, `score="bounds"`',
    "esa": "ESA",
    "rerope": "ReRoPE",
    "self-extend": "Self-Extend",
    "yarn": "YaRN",
    "longheads": "LongHeads, the paper's score",
    "longheads:score=token_max": 'LongHeads, `score="token_max"`',
    "esa:calibration=bundled": "ESA, calibrated",
    "streaming-llm": "StreamingLLM",
    "lm-infinite": "LM-Infinite",
    "infllm": "InfLLM",
}
TASKS_AT = (4, 8, 16, 32, 64)  # windows, in docs/results.md
LEAST = 10  # prompts of a cell, as docs/results.md says; a score of fewer is not shown
PAGE = ROOT / "docs" / "results.md"
MULTIPLES = (4, 16, 32, 64)


def table(cells: Sequence[Mapping[str, Any]], rows: Mapping[str, str], multiples: Sequence[int]) -> list[str]:
    """Pass keys found and perplexity over prose: a row for each method, a column for each length in windows."""
    here = {(cell["row"], cell["multiple"]): cell for cell in cells if cell["filler"] == FILLER}
    found = [f"{multiple}x" for multiple in multiples]
    columns = ["found at " + found[0], *found[1:], "perplexity at " + found[0], *found[1:]]
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for row, label in rows.items():
        own = [here.get((row, multiple)) for multiple in multiples]
        texts = [*map(_found, own), *map(_perplexity, own)]
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return lines


def task_table(cells: Sequence[Mapping[str, Any]], multiple: int) -> list[str]:
    """Scores of the tasks beside pass keys: of stock in the window, and of ``LEAST`` prompts or more at a length."""
    here = {(cell["task"], cell["row"], cell["multiple"]): cell for cell in cells if cell["n"] >= LEAST}
    rows = [row for row in OF_TASKS if any((task, row, multiple) in here for task in TASKS)]
    lines = ["| task | in the window | " + " | ".join(OF_TASKS[row] for row in rows) + " |"]
    lines.append("| --- |" + " ---: |" * (1 + len(rows)))
    for task, label in TASKS.items():
        own = [here.get((task, "stock", 1)), *(here.get((task, row, multiple)) for row in rows)]
        scores = ("" if cell is None else f"{cell['score']:.0%}" for cell in own)
        lines.append(f"| {label} (`{task}`) | " + " | ".join(scores) + " |")
    return lines


def task_marks(multiple: int) -> tuple[str, str]:
    """What a table of tasks stands between."""
    return f"<!-- tasks at {multiple}x -->", f"<!-- /tasks at {multiple}x -->"


def filled(text: str, results: Mapping[str, Any]) -> str:
    """The text of ``PAGE`` with the tables of these results."""
    text = between(text, MARKS, table(results["cells"], ALL, MULTIPLES))
    for multiple in TASKS_AT:
        text = between(text, task_marks(multiple), task_table(results["tasks"], multiple))
    return text


def _found(cell: Mapping[str, Any] | None) -> str:
    return "" if cell is None or not cell["n"] else f"{cell['found']}/{cell['n']}"


def _perplexity(cell: Mapping[str, Any] | None) -> str:
    """Over prompts of one seed and length alike, so that cells can be compared: the ratio times what it is over."""
    if cell is None or not cell["compared"]:
        return ""
    value = cell["ratio"] * cell["in_window"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
