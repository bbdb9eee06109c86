"""The tables of quality in README.md and docs/results.md, from results/quality/quality.json.

python benchmarks/front.py                 # puts them between their marks, after benchmarks/quality.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import between

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "quality" / "quality.json"
MARKS = "<!-- quality -->", "<!-- /quality -->"
FILLER = "prose"
FEW = {
    "stock": "the stock model",
    "yarn": "YaRN",
    "dca": "DCA",
    "longheads:score=bounds": 'LongHeads, `score="bounds"`',
    "esa": "ESA",
}
ALL = {
    "stock": "stock",
    "yarn": "`yarn`",
    "streaming-llm": "`streaming-llm`",
    "lm-infinite": "`lm-infinite`",
    "infllm": "`infllm`",
    "rerope": "`rerope`",
    "self-extend": "`self-extend`",
    "dca": "`dca`",
    "longheads": "`longheads`, the paper's score",
    "longheads:score=bounds": '`longheads`, `score="bounds"`',
    "esa": "`esa`",
    "esa:calibration=bundled": "`esa` with a calibration",
}
DOCUMENTS = {
    ROOT / "README.md": (FEW, (4, 16, 64)),
    ROOT / "docs" / "results.md": (ALL, (4, 8, 16, 64)),
}


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


def _found(cell: Mapping[str, Any] | None) -> str:
    return "" if cell is None or not cell["n"] else f"{cell['found']}/{cell['n']}"


def _perplexity(cell: Mapping[str, Any] | None) -> str:
    """Over prompts of one seed and length alike, so that cells can be compared: the ratio times what it is over."""
    if cell is None or not cell["compared"]:
        return ""
    value = cell["ratio"] * cell["in_window"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def main() -> int:
    cells = json.loads(RESULTS.read_text(encoding="utf-8"))["cells"]
    for path, (rows, multiples) in DOCUMENTS.items():
        text = path.read_text(encoding="utf-8")
        path.write_text(between(text, MARKS, table(cells, rows, multiples)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
