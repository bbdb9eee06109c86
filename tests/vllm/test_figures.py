"""What the documentation says of speed is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_ratios_are_those_of_the_results():
    measured = json.loads((ROOT / "benchmarks/results/vllm/speed.json").read_text())["float32"]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in (ROOT / "docs/vllm.md").read_text().split("\n")
    ]
    tasks = {task: of["of vllm with yarn"] for task, of in measured.items() if task != "about"}
    assert len(tasks) == 4
    for task, ratios in tasks.items():
        (row,) = [row for row in rows if row and row[0].startswith(task)]
        assert row[1:] == [f"{ratios[method]:.2f}" for method in ("dca", "chosen chunks")], task
