"""What `dense="kept"` gains over `dense="window"`: the bundled model at one and two windows, in about three minutes.

In the window `"window"` is the stock model. Pass keys, facts and the perplexity of prose that the model was not trained
on, the same prompts for both; and the time of reading a prompt, both in turns, on one thread by the process's own
clock. The table goes into docs/methods/esa.md.

    python benchmarks/dense.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import longspan
from common import between, clock, machine, ratio, take_turns
from longspan import files
from longspan.bundled import load_bundled
from longspan_eval import passkey
from longspan_eval.generate import prefill
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import found, perplexity
from longspan_eval.sample import Sample
from longspan_eval.session import Session, bundled
from longspan_eval.spec import MethodSpec, parse_spec
from longspan_eval.subject import Subject
from longspan_eval.task import Task
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.passkey import scored_passkey
from longspan_eval.tasks.scores import line_complete

RESULTS = Path(__file__).parent / "results" / "dense.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "methods" / "esa.md"
MARKS = "<!-- dense -->", "<!-- /dense -->"
METHODS = {"esa": "ESA", "infllm": "InfLLM", "longheads:num_chunks=8": "LongHeads, `num_chunks=8`"}
DENSE = ("window", "kept")
ASKED = {"passkey": "pass keys in noise", "passkey-prose": "in prose", "facts": "facts"}
MULTIPLES = (1, 2)  # windows
PROMPTS, ROUNDS = 25, 15
TARGETS = 256  # tokens at the end of the prose whose loss is taken


def spec(method: str, dense: str) -> MethodSpec:
    """A method with the value of ``dense``."""
    return parse_spec(f"{method}{',' if ':' in method else ':'}dense={dense}")


def scores(session: Session, asked: MethodSpec, length: int) -> dict[str, float]:
    """Prompts answered, in all, by task; and the perplexity of prose."""

    def samples(task: Task, depth: float | None = None) -> list[Sample]:
        made = [session.measure(TaskPrompt(asked, length, n, task=task, depth=depth)) for n in range(PROMPTS)]
        failed = next((one.error for one in made if one.error is not None), None)
        if failed is not None:
            raise RuntimeError(f"{asked.label}, {task.name}, {length} tokens: {failed}")
        return made

    def right(name: str) -> float:
        # An answer is one line: the many tokens that a task grants to talkative models are not waited for.
        task = replace(TASKS[name], until=TASKS[name].until or line_complete)
        return round(found(samples(task)).value * PROMPTS, 3)

    # The pass key lies before all of the prose, so that every prompt has as many scored tokens.
    prose = samples(scored_passkey("prose", TARGETS), depth=0.0)
    return {**{name: right(name) for name in ASKED}, "perplexity": perplexity(prose).value}


def slower(method: str, length: int) -> float:
    """Seconds of reading a prompt with ``"kept"`` over those with ``"window"``: the median of rounds."""
    runs, tokenizer = {}, None
    for dense in DENSE:
        model, tokenizer = load_bundled()
        spec(method, dense).attach(model, length)
        runs[dense] = model
    ids = torch.tensor([passkey.build(tokenizer, length=length, seed=0).input_ids])
    with torch.inference_mode():
        calls = {dense: lambda model=model: prefill(model, ids, 1) for dense, model in runs.items()}
        take_turns(calls, 2, clock(1))  # to warm up
        return ratio(take_turns(calls, ROUNDS, clock(1)), "kept", "window")


def measured() -> dict[str, Any]:
    """The results: the model, the machine, and a row for each method, length and value of ``dense``."""
    torch.set_num_threads(1)
    session = bundled()
    subject = Subject.of(session.model, session.tokenizer)
    rows: list[dict[str, Any]] = []
    for multiple in MULTIPLES:
        length = multiple * subject.window
        for method in METHODS:
            for dense in DENSE:
                row = {"method": method, "dense": dense, "windows": multiple, "tokens": length}
                rows.append(row | scores(session, spec(method, dense), length))
            rows[-1]["seconds_over_window"] = slower(method, length)
            print(*rows[-2:], sep="\n", flush=True)
    return {
        "model": {"sha256": subject.sha256, "parameters": subject.parameters, "window": subject.window},
        "machine": {**machine(1), "longspan": longspan.__version__},
        "prompts": PROMPTS,
        "rounds": ROUNDS,
        "rows": rows,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows as lines of Markdown, both values of ``dense`` in a cell."""
    columns = [*ASKED.values(), "perplexity of prose", 'time of a prompt, over `"window"`']
    lines = ['| `"window"`, `"kept"` | ' + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for window, kept in zip(rows[::2], rows[1::2], strict=True):
        cells = [f"{window[name]:g}, {kept[name]:g}" for name in ASKED]
        cells += [f"{window['perplexity']:.1f}, {kept['perplexity']:.1f}", f"{kept['seconds_over_window']:.2f}"]
        lines.append(f"| {METHODS[kept['method']]}, {kept['windows']}x | " + " | ".join(cells) + " |")
    return lines


def filled(results: Mapping[str, Any]) -> str:
    """The page with the table of these results."""
    return between(DOCUMENT.read_text(encoding="utf-8"), MARKS, table(results["rows"]))


def main() -> int:
    results = measured()
    files.write(RESULTS, json.dumps(results, indent=1) + "\n")
    files.write(DOCUMENT, filled(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
