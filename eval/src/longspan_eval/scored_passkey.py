"""Passkeys whose text is also scored: the task and the cells of the quality table and of the demo.

The samples of the published table are kept under keys made here, so the words that go into a key never change.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from longspan.errors import LongspanError
from longspan_eval import passkey
from longspan_eval.filler import FillerName
from longspan_eval.passkey import number_complete
from longspan_eval.plan import Ask, Cell, key_of
from longspan_eval.rows import Row
from longspan_eval.subject import Subject
from longspan_eval.task import Example, Record, Task

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # in turn, so that any five prompts in a row have one of each
TARGETS = 256  # tokens at the end of the text whose loss is taken
# Parameters that came after samples were published, and the values at which they change nothing: no part of a key then.
_NEWER: dict[str, dict[str, Any]] = {"longheads": {"remap": "slots", "far": None}, "esa": {"remap": "far"}}
# Parameters that methods had when samples were published, and have no more, at the values that they have now.
_OLDER: dict[str, dict[str, Any]] = {
    "longheads": {"pick": "best", "fix_layers": False, "prefill": "select", "seed": 0},
    "esa": {"combine": "sum"},
}


def scored_passkey(filler: FillerName, targets: int) -> Task:
    """The passkey task over a filler, with the loss of the last ``targets`` tokens of the text taken."""
    return Task(
        name=passkey.NAME,
        version=passkey.VERSION,
        paper="Mohtashami & Jaggi, 2023, arXiv 2305.16300",
        summary=f"five digits hidden in {filler}, and the loss of the end of the text",
        new_tokens=passkey.ANSWER_ROOM,
        build=partial(_build, filler=filler, targets=targets),
        score=passkey.score,
        at_depths=True,
        until=number_complete,
    )


def _build(
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
    filler: FillerName,
    targets: int,
) -> Example:
    return passkey.build(
        tokenizer,
        length=length,
        seed=seed,
        depth=depth,
        filler=filler,
        answer_room=passkey.ANSWER_ROOM,
        targets=targets,
    )


def plan_cell(
    subject: Subject,
    row: Row,
    multiple: float,
    filler: FillerName,
    prompts: int,
    *,
    seed: int = 0,
    depth: float | None = None,
) -> Cell:
    """A cell of ``prompts`` prompts with seeds from ``seed`` on; at the depths of ``DEPTHS`` in turn, or all at one."""
    length = round(multiple * subject.window)
    if prompts < 1:
        raise LongspanError(f"{row.label} at {multiple:g}x: prompts must be at least 1, not {prompts}")
    parameters = row.parameters(subject.window, length)
    newer = _NEWER.get(row.name, {})
    changed = any(parameters.get(name, value) != value for name, value in newer.items())
    keyed = parameters if changed else {k: v for k, v in parameters.items() if k not in newer}
    task = scored_passkey(filler, TARGETS)
    common = {
        "task": passkey.NAME,
        "version": passkey.VERSION,
        "targets": TARGETS,
        "length": length,
        "filler": filler,
        "method": row.name,
        "parameters": {**_OLDER.get(row.name, {}), **keyed},
        "model": subject.sha256,
    }
    asks = []
    for n in range(prompts):
        where = DEPTHS[n % len(DEPTHS)] if depth is None else depth
        key = key_of({**common, "seed": seed + n, "depth": where})
        asks.append(Ask(row, task, length, seed + n, where, key, filler))
    return Cell(row, task, multiple, length, filler, parameters, tuple(asks))
