"""The protocol by which each index is saved, so that it goes on in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from longspan.memory.mapped import TokenBlock


@dataclass(frozen=True)
class SavedIndex:
    """The contents of an index of one row without padding.

    Attributes:
        entries: ``[1, S, N, W]``, a view of what is scored: summaries of units, or reduced keys; None if there are
            none yet. The entries of a longer text begin with those of a shorter one.
        inputs: ``[1, H, T, D]`` each, the last tokens of what the entries are computed from.
        counts: whole numbers, by name; ``length``, the tokens taken in, is one of them.
    """

    entries: Tensor | None
    inputs: tuple[Tensor, ...]
    counts: Mapping[str, Sequence[int]]

    def count(self, name: str) -> int:
        """The one number of a name.

        Raises:
            KeyError, ValueError: there is none, or several.
        """
        (value,) = self.counts[name]
        return value

    def check_length(self, tokens: int) -> None:
        """Raise ``ValueError`` unless the index took in ``tokens`` tokens."""
        if self.count("length") != tokens:
            raise ValueError(f"its index is of {self.count('length')} tokens, and there are {tokens}")


@dataclass(frozen=True)
class Entries:
    """Saved entries where they lie now.

    Attributes:
        block: ``[1, S, N, W]``, memory or mapped files.
        count: ``N``.
    """

    block: TokenBlock
    count: int


@runtime_checkable
class SavableIndex(Protocol):
    """An index that a document can keep."""

    def save(self) -> SavedIndex:
        """The contents, as views; the index has one row without padding, or none yet."""

    def most_entries(self, tokens: int) -> int:
        """The most entries of a text of ``tokens`` tokens."""

    def restore(self, saved: SavedIndex, entries: Entries | None, tokens: int) -> None:
        """Go on from what ``save`` returned; the index is empty.

        Args:
            saved: inputs and counts; its entries are not read.
            entries: None if there are none.
            tokens: that the index took in.

        Raises:
            KeyError, ValueError: ``saved`` is not of such an index after ``tokens`` tokens.
        """


def check_entries(entries: Entries | None, *, expected: int, most: int) -> None:
    """Raise ``ValueError`` unless there are ``expected`` entries, and no more than ``most``."""
    count = 0 if entries is None else entries.count
    if count != expected or count > most:
        raise ValueError(f"its index has {count} entries, but should have {expected}")
