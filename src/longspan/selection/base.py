"""Axis 1, the selection: which keys a query attends to."""

from __future__ import annotations

from typing import Self

from longspan.bands import AlwaysKept


class Selection:
    """Axis 1: which keys a query attends to.

    A selection of indices also has ``keep(i, j)``: whether query ``i`` ``[T, 1]`` keeps key ``j`` ``[1, N]``, bool,
    ``[T, N]``. The oracle runs it.
    """

    def always(self, first: int = 0) -> AlwaysKept:
        """The keys that choosing queries always keep; query chunks begin at ``first``, the call's first query."""
        raise NotImplementedError

    def kept(self, first: int, stop: int) -> tuple[AlwaysKept, ...]:
        """The keys that queries ``first : stop``, which arrive together, always keep."""
        return (self.always(first),)

    @property
    def together(self) -> int | None:
        """The most queries of a call that choose together; None if all of them may."""
        return None

    def first_together(self, first: int, query: int, dense: bool = False) -> int:
        """The first of the queries that choose together with ``query``, in a call from query ``first`` on.

        Args:
            dense: whether queries that keep every key count as if they chose.
        """
        return first

    def alone(self) -> Self:
        """The same selection for queries that arrive one at a time."""
        return self

    @property
    def budget(self) -> int | None:
        """How many tokens a query far into a text keeps, those of its own query chunk aside; None if that grows."""
        kept = self.always()
        return None if kept.span is None else kept.head + kept.most + kept.span
