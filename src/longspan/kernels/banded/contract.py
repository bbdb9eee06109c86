"""The job of a banded kernel, whichever implementation runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from longspan.kernels.banded.plan import Plan
from longspan.rope import CosSin, Rope


@dataclass(frozen=True, slots=True)
class Banded:
    """Attention over bands; the attributes are the arguments of ``longspan.kernels.banded.banded``."""

    q: Tensor
    keys: Sequence[Tensor]
    v: Tensor
    plan: Plan
    cos_sin: Sequence[CosSin]
    rope: Rope
    scale: float
    softcap: float | None = None
