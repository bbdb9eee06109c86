"""The common part of store and index, and the index's protocol for the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Placement:
    """Stands for where a store's memory lies. The store has another one once its memory may have moved."""


class Slot(NamedTuple):
    """Memory for one more token.

    Attributes:
        place: the token's place among those stored.
        kept_at: the place of its inputs among those that an index keeps; 0 if it keeps none.
        moved: whether the stored tokens lie elsewhere since the last token.
        completes: whether the token fills a unit of the index, which ``KeyIndex.summarise`` then summarises.
    """

    place: int
    kept_at: int = 0
    moved: bool = False
    completes: bool = False


class KeyIndex(Protocol):
    """A method's index beside the keys to choose among them; the store tells it what becomes of its tokens."""

    def reserve_one(self) -> Slot | None:
        """Memory for the next token, which a kernel writes; None if it takes more than writing the token there."""

    def commit_one(self) -> None:
        """The token was written to what ``reserve_one`` gave, and counts as stored."""

    def reserve(self, tokens: int) -> None:
        """Have room for what is kept of ``tokens`` in all, so that taking in up to there moves nothing."""

    @property
    def memory(self) -> Sequence[Tensor]:
        """The tensors that a recorded step reads and writes in place, of any shape."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated, on the device."""

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on. Called before the store forgets them; if it raises, neither does."""

    def croppable(self, length: int) -> int:
        """The most tokens, at most ``length``, that ``crop`` can leave."""

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order (repeats allowed): ``[B]`` int64, of the new ``B``."""

    def reset(self) -> None:
        """Forget everything."""

    def state(self) -> list[Tensor]:
        """All that is kept, as views of any shape."""
