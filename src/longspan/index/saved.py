"""What an index has to keep so that it can go on elsewhere: its entries, the inputs of unfinished units, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from longspan.index.blocks import BlockIndex
from longspan.index.chunks import ChunkIndex
from longspan.index.rows import UnitIndex
from longspan.index.tail import Tail
from longspan.index.tokens import TokenIndex
from longspan.store.memory import Kind, Memory
from longspan.store.segments import Segments

Counts: TypeAlias = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class SavedIndex:
    """An index of one row without padding.

    Attributes:
        entries: ``[1, S, N, W]``, a view of those there are; None where there are none yet.
        tails: the last inputs, ``[1, H, T, D]`` each.
        counts: whole numbers, by name.
    """

    entries: Tensor | None
    tails: tuple[Tensor, ...]
    counts: dict[str, list[int]]


def save_index(index: Any) -> SavedIndex | None:
    """What is to be kept of an index; None where its method keeps nothing beside the keys.

    It only grows: the entries of a longer text begin with those of a shorter one.
    """
    if isinstance(index, TokenIndex):
        entries = index._held.first(index._length) if index._length else None
        return SavedIndex(entries, (), {"length": [index._length]})
    if not isinstance(index, UnitIndex):
        return None
    tail, done = index.tail, index._done[0] if index._done else 0
    rows = done * (index.parts if isinstance(index, ChunkIndex) else 1)
    counts = {"length": [index._length], "done": [done], "tail": [tail.start, tail.stop]}
    if isinstance(index, BlockIndex):
        counts["calls"] = list(index.calls)
    tails = tuple(tail.slice(n, tail.start, tail.stop) for n in range(len(tail.tensors)))
    return SavedIndex(index._held.first(rows) if rows else None, tails, counts)


def entries_of(index: Any, tokens: int) -> int:
    """The most entries that an index has of a text of so many tokens."""
    if isinstance(index, TokenIndex):
        return tokens
    if isinstance(index, ChunkIndex):
        return tokens // index.size * index.parts
    return index.layout.candidates(tokens) if isinstance(index, BlockIndex) else 0


def load_index(
    index: Any, saved: SavedIndex, tokens: int, held: tuple[Kind, Memory | Segments] | None, count: int
) -> None:
    """Let an empty index go on from what ``save_index`` gave.

    Args:
        saved: the inputs and counts.
        tokens: that it has taken in.
        held: what the entries were made for, and where they lie now; None where there are none.
        count: how many there are.

    Raises:
        ValueError: the counts are not those of such an index after so many tokens.
    """
    if _count(saved.counts, "length") != tokens:
        raise ValueError(f"its index is of {saved.counts['length']} tokens, and there are {tokens}")
    if isinstance(index, TokenIndex):
        expected = tokens
    else:
        done, parts = _count(saved.counts, "done"), index.parts if isinstance(index, ChunkIndex) else 1
        expected = done * parts
    if expected != count or count > entries_of(index, tokens):
        raise ValueError(f"its index has {count} entries, where it should have {expected}")
    if held is not None:
        kind, entries = held
        index._held.adopt(kind, entries)
        if isinstance(index, TokenIndex):  # as the first tokens of a text do it
            index.theta_q, index.theta_k = (x.to(kind.device, kind.dtype) for x in (index.theta_q, index.theta_k))
    index._length = tokens
    if isinstance(index, UnitIndex):
        index._done, index._pads = [done], (0,)
        _load_tail(index.tail, saved, tokens)
    if isinstance(index, BlockIndex):
        calls = list(saved.counts["calls"])
        if calls != sorted(calls) or not all(0 <= call < tokens for call in calls):
            raise ValueError(f"its calls do not lie within {tokens} tokens")
        index.calls = calls


@torch.inference_mode(False)
def _load_tail(tail: Tail, saved: SavedIndex, tokens: int) -> None:
    start, stop = saved.counts["tail"]
    fits = 0 <= start <= stop == tokens and min(tail.keep, tokens) <= stop - start <= tail.room
    if not fits or any(x.shape[2] != stop - start for x in saved.tails):
        raise ValueError(f"the inputs kept are not those of tokens {start} to {stop}")
    tail._data = [x.new_empty(*x.shape[:2], tail.room, x.shape[3]) for x in saved.tails]
    for held, x in zip(tail._data, saved.tails, strict=True):
        held[:, :, : stop - start] = x
    tail.start, tail.stop = start, stop


def _count(counts: Counts, name: str) -> int:
    (found,) = counts[name]
    return found
