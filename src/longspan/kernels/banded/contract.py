"""The job of a banded kernel, whichever implementation runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torch import Tensor

from longspan.kernels.banded.plan import Plan
from longspan.rope import CosSin, Rope


class BandAngles(Sequence[CosSin]):
    """cos and sin ``[bands, T, r / 2]`` of all bands, as a kernel reads them; and as a sequence those of each band."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin

    def __len__(self) -> int:
        return self.cos.shape[0]

    def __iter__(self) -> Iterator[CosSin]:
        return zip(self.cos.unbind(), self.sin.unbind(), strict=True)

    @overload
    def __getitem__(self, band: int) -> CosSin: ...
    @overload
    def __getitem__(self, band: slice) -> BandAngles: ...
    def __getitem__(self, band: int | slice) -> CosSin | BandAngles:
        cos, sin = self.cos[band], self.sin[band]
        return BandAngles(cos, sin) if isinstance(band, slice) else (cos, sin)


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
