"""The job of a banded kernel, whichever implementation runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
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
class Pages:
    """Where rows find their keys among those that are stored, of which a page holds some that follow one another.

    Key ``j`` of row ``b`` is stored key ``table[b, j // size] * step + j % size``.

    Attributes:
        table: ``[B, n]`` int32, on the keys' device. Entries of pages whose keys no query sees are not read.
        size: keys of a page.
        step: stored keys from the first one of a page to that of the next.
    """

    table: Tensor
    size: int
    step: int

    def numbers(self, row: int, stop: int) -> Tensor:
        """``[stop]`` int64, where a row's keys before ``stop`` are stored."""
        first = self.table[row, : -(-stop // self.size), None].long() * self.step
        return (first + torch.arange(self.size, device=first.device)).flatten()[:stop]


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
    pages: Pages | None = None

    def by_row(self) -> Iterator[Banded]:
        """The jobs of unlike rows, one by one, with their keys side by side."""
        for n in range(self.plan.unlike):
            plan = self.plan.row(n)
            own = {id(x): _row(x, n) for x in (*self.keys, self.v)}
            if self.pages is not None:
                numbers = self.pages.numbers(n, max(int(hi.max()) for hi in plan.hi))
                own = {at: x[:, :, numbers] for at, x in own.items()}
            keys, v = [own[id(k)] for k in self.keys], own[id(self.v)]
            angles = [(cos[n], sin[n]) for cos, sin in self.cos_sin]
            yield replace(self, q=self.q[n : n + 1], keys=keys, v=v, plan=plan, cos_sin=angles, pages=None)


def _row(x: Any, n: int) -> Any:
    """One row of a tensor, or of one that is offloaded."""
    return x[n : n + 1] if isinstance(x, Tensor) else x.row(n)
