"""A text in chunks, and which of them each head keeps at one query."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend import Choice
from longspan.methods import Method
from longspan.selection import Choosing

NOT, FORCED, CHOSEN = 0, 1, 2


@dataclass(frozen=True)
class Chunking:
    """A text in chunks: ``borders`` are the tokens they begin with, ascending from 0, and ``stop`` is its length."""

    borders: tuple[int, ...]
    stop: int

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.borders, (*self.borders[1:], self.stop), strict=False))
        if not self.borders or self.borders[0] != 0 or not rising:
            raise ValueError(
                f"chunks begin at 0 and rise, up to {self.stop} tokens, not at {list(self.borders[:8])} and so on"
            )

    @classmethod
    def of(cls, method: Method, length: int, size: int | None = None) -> Chunking:
        """The chunks of ``length`` tokens as a method has them, or ``size`` tokens each.

        LongHeads' are its own; of InfLLM's text the initial tokens are one, and then each block. Other methods have
        none and need a size.

        Raises:
            ValueError: there is no such chunking.
        """
        if length < 1 or (size is not None and size < 1):
            raise ValueError(f"a chunk and a text have at least one token, not {size} and {length}")
        first = 0
        if size is None:
            chosen = method.selection(length) if method.selects else None  # units are the same in every window
            if not isinstance(chosen, Choosing) or chosen.size == 1:
                raise ValueError(
                    f"{method.name} chooses tokens and has no chunks of its own: say how many tokens one has"
                )
            size, first = chosen.size, chosen.origin
        return cls(tuple(sorted({0, *range(first, length, size)})), length)

    def __len__(self) -> int:
        return len(self.borders)

    def spans(self) -> list[tuple[int, int]]:
        """First token, and one past the last, of each."""
        return list(zip(self.borders, (*self.borders[1:], self.stop), strict=True))

    def holding(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The chunks that hold a token of the spans ``(first, one past the last)``, ascending.

        Raises:
            ValueError: a span is not in the text.
        """
        found: set[int] = set()
        for a, b in spans:
            if not 0 <= a < b <= self.stop:
                raise ValueError(f"the tokens {a} to {b} are not in a text of {self.stop}")
            found |= set(range(self._of(a), self._of(b - 1) + 1))
        return sorted(found)

    def _of(self, token: int) -> int:
        return bisect_right(self.borders, token) - 1

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """The chunk of each token, int64 of the same shape."""
        return torch.searchsorted(torch.tensor(self.borders), tokens.contiguous(), right=True) - 1


def one_moment(choices: Sequence[Choice]) -> int:
    """The query that all choices are of.

    Raises:
        ValueError: there are none, or they are of several queries, rows or calls.
    """
    moments = {(one.call, one.row, one.first, one.query) for one in choices}
    if len(moments) != 1:
        raise ValueError(
            f"choices of one query are wanted, in all layers, not of {len(moments)}: take them from Trace.at(query)"
        )
    layers = [one.layer for one in choices]
    if len(set(layers)) < len(layers):
        raise ValueError(f"each layer's choice is wanted once, not those of the layers {layers}")
    return moments.pop()[3]


def chosen(choice: Choice, chunks: Chunking, *, forced: bool = True) -> Tensor:
    """Which chunks each of those that choose keeps a token of: ``[S, n]`` bool.

    Args:
        forced: count those that are kept anyway too: the first and the last ones.
    """
    check_covers(chunks, choice.query)
    tokens = choice.origin + choice.units[..., None] * choice.size + torch.arange(choice.size)
    marks = torch.zeros(choice.units.shape[0], len(chunks), dtype=torch.bool)
    marks.scatter_(1, chunks.of_tokens(tokens.flatten(1)), True)
    if forced:
        marks[:, chunks.holding(choice.kept)] = True
    return marks


def check_covers(chunks: Chunking, query: int) -> None:
    """Raise unless the chunks are those of all tokens that ``query`` sees."""
    if chunks.stop != query + 1:
        raise ValueError(f"query {query} sees {query + 1} tokens, and the chunks are those of {chunks.stop}")


def kept_map(choices: Sequence[Choice], chunks: Chunking) -> tuple[list[tuple[int, int]], Tensor]:
    """``(layer, head or group)`` of each row, and ``[rows, chunks]`` int64: 0 left out, 1 kept anyway, 2 chosen."""
    one_moment(choices)
    names, rows = [], []
    for one in choices:
        picked, kept = chosen(one, chunks, forced=False), chosen(one, chunks)
        rows.append(torch.where(picked, CHOSEN, torch.where(kept, FORCED, NOT)))
        names += [(one.layer, n) for n in range(len(picked))]
    return names, torch.cat(rows)
