"""A text divided into chunks, and the chunks that each head keeps for one query."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend import Choice
from longspan.choosing.base import Choosing
from longspan.errors import LongspanError
from longspan.methods import Method

NOT, FORCED, CHOSEN = 0, 1, 2


@dataclass(frozen=True)
class Chunking:
    """A text divided into chunks.

    Attributes:
        borders: the first token of each chunk, ascending from 0.
        stop: the length of the text, in tokens.

    Raises:
        ValueError: the borders do not start at 0 or do not ascend.
    """

    borders: tuple[int, ...]
    stop: int

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.borders, (*self.borders[1:], self.stop), strict=False))
        if not self.borders or self.borders[0] != 0 or not ascending:
            raise LongspanError(
                f"chunk borders must ascend from 0 to less than {self.stop}, the number of tokens, and begin with "
                f"{list(self.borders[:8])}"
            )

    @classmethod
    def of(cls, method: Method, length: int, size: int | None = None) -> Chunking:
        """The chunks of a text of ``length`` tokens: those that a method chooses, or chunks of ``size`` tokens.

        For LongHeads these are its chunks. For InfLLM the initial tokens form one chunk, and each block another.
        Other methods require ``size``.

        Raises:
            ValueError: ``size`` or ``length`` is below 1, or the method has no chunks and ``size`` is None.
        """
        if length < 1 or (size is not None and size < 1):
            raise LongspanError(f"a chunk and a text must have at least one token, not {size} and {length}")
        first = 0
        if size is None:
            selection = method.selection(length) if method.selects else None  # its units do not depend on the window
            if not isinstance(selection, Choosing) or selection.size == 1:
                raise LongspanError(f"{method.name} does not choose chunks: pass size, the number of tokens per chunk")
            size, first = selection.size, selection.origin
        return cls(tuple(sorted({0, *range(first, length, size)})), length)

    def __len__(self) -> int:
        return len(self.borders)

    def spans(self) -> list[tuple[int, int]]:
        """``(first token, one past the last)`` of each chunk."""
        return list(zip(self.borders, (*self.borders[1:], self.stop), strict=True))

    def holding(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The chunks that contain a token of the spans ``(first, one past the last)``, ascending.

        Raises:
            ValueError: a span exceeds the text.
        """
        chunks: set[int] = set()
        for a, b in spans:
            if not 0 <= a < b <= self.stop:
                raise LongspanError(f"the span {a}:{b} is empty or exceeds the text of {self.stop} tokens")
            chunks |= set(range(bisect_right(self.borders, a) - 1, bisect_right(self.borders, b - 1)))
        return sorted(chunks)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """The chunk of each token: int64 of any shape → int64 of the same shape."""
        return torch.searchsorted(torch.tensor(self.borders), tokens.contiguous(), right=True) - 1


def one_moment(choices: Sequence[Choice]) -> None:
    """Raise ``ValueError`` unless there are choices, all of one query of one row and call, one at most of a layer."""
    moments = {(choice.call, choice.row, choice.first, choice.query) for choice in choices}
    if len(moments) != 1:
        raise LongspanError(
            f"the choices must belong to one query, not to {len(moments)}: take them from Trace.at(query)"
        )
    layers = [choice.layer for choice in choices]
    if len(set(layers)) < len(layers):
        raise LongspanError(f"the choices must have each layer once, not the layers {layers}")


def chosen(choice: Choice, chunks: Chunking, *, forced: bool = True) -> Tensor:
    """The chunks of which each selecting head keeps a token: ``[S, n]`` bool, ``n = len(chunks)``.

    Args:
        forced: also mark the chunks that the method always keeps, the first and the last ones.
    """
    check_covers(chunks, choice.query)
    tokens = choice.origin + choice.units[..., None] * choice.size + torch.arange(choice.size)
    marks = torch.zeros(choice.units.shape[0], len(chunks), dtype=torch.bool)
    marks.scatter_(1, chunks.of_tokens(tokens.flatten(1)), True)
    if forced:
        marks[:, chunks.holding(choice.kept)] = True
    return marks


def check_covers(chunks: Chunking, query: int) -> None:
    """Raise ``ValueError`` if the chunks do not cover exactly the tokens up to ``query``."""
    if chunks.stop != query + 1:
        raise LongspanError(f"query {query} sees {query + 1} tokens, but the chunks cover {chunks.stop}")


def kept_map(choices: Sequence[Choice], chunks: Chunking) -> tuple[list[tuple[int, int]], Tensor]:
    """``(layer, head or group)`` of each row, and ``[R, n]`` int64: 0 left out, 1 always kept, 2 chosen."""
    one_moment(choices)
    names, rows = [], []
    for choice in choices:
        is_chosen, is_kept = chosen(choice, chunks, forced=False), chosen(choice, chunks)
        rows.append(torch.where(is_chosen, CHOSEN, torch.where(is_kept, FORCED, NOT)))
        names += [(choice.layer, n) for n in range(len(is_chosen))]
    return names, torch.cat(rows)
