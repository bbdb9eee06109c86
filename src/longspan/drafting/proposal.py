"""The interface of drafters, and the count of what they drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Proposal:
    """Tokens that a drafter expects next.

    Attributes:
        tokens: their ids, the next one first; none if it has no idea.
        kind: proposals of one kind are accepted about equally often, and counted together.
    """

    tokens: tuple[int, ...]
    kind: str


class Drafter(Protocol):
    """Proposes the next tokens of a text. Its proposals are certain: of a text and a length there is one."""

    def begin(self, tokens: Tensor) -> None:
        """A text begins, ``[T]`` int64; it may be a continuation of the one before."""

    def propose(self, tokens: Tensor, most: int) -> Proposal:
        """At most ``most`` tokens that may follow.

        Args:
            tokens: ``[T]`` int64; the text of ``begin`` and what followed it, which is never taken back.
        """


@dataclass
class Drafts:
    """What was drafted for an answer.

    Attributes:
        drafted: tokens that were verified. accepted: how many of them became tokens of the answer.
        verifications: forwards that verified them.
    """

    drafted: int = 0
    accepted: int = 0
    verifications: int = 0
