"""The position map, and its form for chosen keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from longspan.bands import AlwaysKept, Band, Index, IndexMap, Interval, KeyMap, Origin, causal, compose, only
from longspan.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


def identity(i: Tensor) -> Tensor:
    """Positions equal to the indices ``i``; any shape."""
    return i


def constant(value: int) -> IndexMap:
    """The map of every index to ``value``; any shape."""
    return lambda i: torch.full_like(i, value)


def near(border: IndexMap) -> Band:
    """The tokens from ``border`` on, at their true distance."""
    return Band("near", identity, Index(), Interval(border, causal))


class PositionMap:
    """Axis 2: the relative position at which a query sees a key.

    A map of indices also has ``rel(i, j)``: the relative position of each key ``j`` ``[1, N]`` for each query ``i``
    ``[T, 1]``, int64, ``[T, N]``. The oracle runs it.
    """

    def everywhere(self) -> tuple[Band, ...]:
        """The bands over every key, of a map that depends on indices alone."""
        raise NotImplementedError

    def bands(self, kept: AlwaysKept) -> tuple[Band, ...]:
        """The bands of what is kept whatever is chosen."""
        return compose(kept.intervals, self.everywhere())

    def all_bands(self, parts: Sequence[AlwaysKept]) -> tuple[Band, ...]:
        """The bands of all parts of a selection, each of which applies to some of the queries."""
        return tuple(
            band if part.queries is None else only(band, part.queries) for part in parts for band in self.bands(part)
        )

    def reach(self, kept: AlwaysKept) -> int | None:
        """The largest position from which a query sees a chosen key; None if this map sees none."""
        return None


@dataclass(frozen=True)
class Gather:
    """How the queries of a query chunk see the tokens that they chose together.

    Attributes:
        q_pos: ``[T]`` int64, the queries' positions, one tensor for each run of tokens that are seen alike.
        ends: ``[B, S, len(q_pos)]`` int64, one past the last token of each run; None if there is one run.
        k_pos: ``[M]`` int64, the positions that the gathered keys are rotated to, or None if they stay as stored.
    """

    q_pos: tuple[Tensor, ...]
    ends: Tensor | None = None
    k_pos: Tensor | None = None


class ChosenPositionMap(PositionMap):
    """A map that also says at which positions queries see the keys that they chose.

    Attributes:
        rotates_gathered: whether keys that a query chunk chose are rotated again once they are gathered, which a
            normalisation after the rotation rules out.
        rotation_remedy: what the error advises if such a normalisation rules this map out.
    """

    rotates_gathered: ClassVar[bool] = False
    rotation_remedy: ClassVar[str] = "use a position map that keeps chosen keys at one distance"

    def chosen_keys(self, kept: AlwaysKept) -> KeyMap:
        """The stored rotation that chosen keys are read from."""
        raise NotImplementedError

    def places(self, i: Tensor, count: int, kept: AlwaysKept) -> Tensor | None:
        """Query positions ``[T, count]`` (int64, CPU) for the units of each query ``i``, in their order.

        None if these positions do not follow from the order alone; then ``units`` gives them.
        """
        raise NotImplementedError

    def stored_in(self, kept: AlwaysKept) -> int:
        """Units of a block: ``places`` has unit ``u`` stored from 0 on, and it is from ``(u mod block) · size`` on.

        The query's position for the unit is moved by as much.
        """
        return 1

    def units(self, i: Tensor, units: Tensor, kept: AlwaysKept) -> Tensor:
        """Query positions ``[B, S, T, m]`` (int64, CPU) for the units ``[B, S, T, m]`` of queries ``i`` ``[T]``."""
        raise NotImplementedError

    def tokens(self, i: Tensor, tokens: Tensor, kept: AlwaysKept) -> Gather:
        """How the queries ``i`` ``[T]`` of a query chunk see the tokens ``[B, S, M]`` it chose, ascending."""
        raise NotImplementedError


class AtOneDistance(ChosenPositionMap):
    """Chosen keys at one distance ``far``: the query at ``far``, the key unrotated."""

    far: int

    def reach(self, kept: AlwaysKept) -> int:
        return self.far

    def chosen_keys(self, kept: AlwaysKept) -> KeyMap:
        return Origin()

    def places(self, i: Tensor, count: int, kept: AlwaysKept) -> Tensor:
        return torch.full((len(i), count), self.far)

    def tokens(self, i: Tensor, tokens: Tensor, kept: AlwaysKept) -> Gather:
        return Gather((torch.full_like(i, self.far),))
