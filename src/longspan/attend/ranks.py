"""The processes that the heads of a layer are split over, when a model runs under tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Equal shares of a layer's heads, in their order: rank ``r`` of ``n`` holds key heads ``r · Hkv : (r + 1) · Hkv``.

    Attributes:
        rank: of this process.
        size: how many there are.
        sum: sums a tensor over them; every rank calls it with a tensor of the same shape and gets the same bits. A
            plain function, since copies of a cache hold it as well.
    """

    rank: int
    size: int
    sum: Callable[[Tensor], Tensor]
