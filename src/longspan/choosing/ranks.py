"""Sums over the processes that a layer's heads are split over, if its heads decide something together."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class AcrossRanks:
    """Adds up parts of a sum over heads, of which this process has only its own.

    Attributes:
        across: sums over the processes that hold the other heads of the layer; None if this one has them all.
    """

    across: Callable[[Tensor], Tensor] | None = None

    def over_ranks(self, own: Tensor) -> Tensor:
        """A sum over all heads of the layer, from this process' own, of the same shape."""
        return own if self.across is None else self.across(own)
