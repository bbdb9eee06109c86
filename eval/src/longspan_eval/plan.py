"""What is to be measured: which prompts each cell of a table asks, under which keys, and in which order."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan_eval.rows import Row
from longspan_eval.task import Record, Task

STEPS = (10, 50)  # a cell is asked in parts that end at these, so that a table says something long before it is whole


@dataclass(frozen=True)
class Ask:
    """One prompt for one row.

    Attributes:
        row, task, length, seed, depth, record: what it is made of and who reads it; ``length`` in tokens.
        key: names its sample, and changes with anything that the sample depends on.
        filler: what the task hides things in, where that is the table's choice; else empty.
        window: the trained window in tokens, where it is not the config's.
    """

    row: Row
    task: Task = field(compare=False, repr=False)
    length: int
    seed: int
    depth: float | None
    key: str
    filler: str = ""
    record: Record | None = field(default=None, compare=False, repr=False)
    window: int | None = None

    @property
    def cell(self) -> tuple[str, str, int, str]:
        """What tells its cell from others."""
        return self.row.label, self.task.name, self.length, self.filler


@dataclass(frozen=True)
class Cell:
    """All prompts of one row at one length of one task.

    Attributes:
        multiple: the length in windows.
        length: tokens of prompt and answer.
        filler: as of its asks.
        parameters: every parameter of the row's method at this length.
        asks: one for each prompt.
    """

    row: Row
    task: Task = field(compare=False, repr=False)
    multiple: float
    length: int
    filler: str
    parameters: dict[str, Any]
    asks: tuple[Ask, ...]


def key_of(what: dict[str, Any]) -> str:
    """A key for everything that a sample depends on, given as JSON has it."""
    return digest(what)[:32]


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, such as a record; equal values have equal ones."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def drawn(total: int, samples: int | None, seed: int = 0) -> list[int]:
    """Which of ``total`` records a cell of so many samples asks; None: all.

    They are drawn from all of them, as files are often sorted, and more samples only add to fewer.
    """
    return random.Random(seed).sample(range(total), total)[:samples]


def schedule(
    cells: Sequence[Cell], done: Callable[[Cell], Iterable[Ask]], rank: Callable[[Cell, int], tuple[float, ...]]
) -> list[list[Ask]]:
    """What is left to ask, in the order in which to ask it.

    Args:
        cells: all cells.
        done: the asks of a cell that need no answer any more.
        rank: of a cell and the number of its part (0 up to the first of ``STEPS``, and so on); the lowest comes first.

    Returns:
        lists of asks of one cell each; an ask that several cells share comes once.
    """
    parts: list[tuple[tuple[float, ...], int, list[Ask]]] = []
    for cell in cells:
        finished = {ask.key for ask in done(cell)}
        edges = [0, *(step for step in STEPS if step < len(cell.asks)), len(cell.asks)]
        for step, (first, last) in enumerate(zip(edges, edges[1:], strict=False)):
            left = [ask for ask in cell.asks[first:last] if ask.key not in finished]
            parts.append((rank(cell, step), len(parts), left))
    seen: set[str] = set()
    ordered = []
    for _, _, asks in sorted(parts, key=lambda part: part[:2]):
        fresh = [ask for ask in asks if ask.key not in seen]
        seen.update(ask.key for ask in fresh)
        if fresh:
            ordered.append(fresh)
    return ordered
