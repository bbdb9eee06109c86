"""The job of a banded kernel, whichever implementation runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from torch import Tensor

from longspan.kernels.banded.plan import Plan
from longspan.rope import CosSin, Rope


class BandAngles(Sequence[CosSin]):
    """cos and sin of all bands as a kernel reads them, and as a sequence those of each band.

    They are ``[bands, T, r / 2]``, or ``[bands, B, T, r / 2]`` if rows are unlike.
    """

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

    def by_row(self) -> Iterator[Banded]:
        """The jobs of unlike rows, one by one."""
        for n in range(self.plan.unlike):
            keys = [_row(k, n) for k in self.keys]
            angles = [(cos[n], sin[n]) for cos, sin in self.cos_sin]
            q, v, plan = self.q[n : n + 1], _row(self.v, n), self.plan.row(n)
            yield replace(self, q=q, keys=keys, v=v, plan=plan, cos_sin=angles)


def _row(x: Any, n: int) -> Any:
    """One row of a tensor, or of one that is offloaded."""
    return x[n : n + 1] if isinstance(x, Tensor) else x.row(n)
