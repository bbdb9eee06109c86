"""What a table needs: which prompts each of its cells asks, under which keys their samples are kept, in which order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.evaluation import passkey
from longspan.evaluation.filler import FillerName
from longspan.evaluation.rows import Row
from longspan.hf.weights import weights_hash

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # in turn, so that any five prompts in a row have one of each
TARGETS = 256  # tokens at the end of the text whose loss is taken
STEPS = (10, 50)  # a cell is asked in parts that end at these, so that a table says something long before it is whole


@dataclass(frozen=True)
class Subject:
    """The model under test: its trained window in tokens and the SHA-256 of its weights."""

    window: int
    sha256: str

    @classmethod
    def of(cls, model: PreTrainedModel) -> Subject:
        return cls(model.config.max_position_embeddings, weights_hash(model))


@dataclass(frozen=True)
class Ask:
    """One prompt for one row. ``key`` names its sample: it changes with anything that the sample depends on."""

    row: Row
    length: int
    filler: FillerName
    seed: int
    depth: float
    key: str

    @property
    def cell(self) -> tuple[str, int, str]:
        return self.row.label, self.length, self.filler


@dataclass(frozen=True)
class Cell:
    """All prompts of one row at one length over one filler.

    Attributes:
        multiple: the length in windows.
        length: tokens of prompt and answer.
        parameters: every parameter of the row's method at this length.
        asks: one for each prompt, seeds counting up.
    """

    row: Row
    multiple: float
    length: int
    filler: FillerName
    parameters: dict[str, Any]
    asks: tuple[Ask, ...]


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
    common = {
        "task": passkey.NAME,
        "version": passkey.VERSION,
        "targets": TARGETS,
        "length": length,
        "filler": filler,
        "method": row.name,
        "parameters": parameters,
        "model": subject.sha256,
    }
    asks = []
    for n in range(prompts):
        where = DEPTHS[n % len(DEPTHS)] if depth is None else depth
        key = _key({**common, "seed": seed + n, "depth": where})
        asks.append(Ask(row, length, filler, seed + n, where, key))
    return Cell(row, multiple, length, filler, parameters, tuple(asks))


def _key(what: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


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
