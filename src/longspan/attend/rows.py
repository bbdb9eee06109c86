"""What queries see by their index alone, computed once for all forwards and grown on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from longspan.attend.state import Ranges
from longspan.bands import KeyMap
from longspan.kernels.banded import Plan

MOST = 1 << 20  # rows of all bands together that are kept: 40 MB, and 16 MB on a device
_REPAID_BY = 16  # rows before the new tokens are worth computing if these are at least one part in so many of the text


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows ``0 : plan.stop``; on a device ranges ``[bands, 2, T]`` and positions ``[bands, T]``, ``[rotations, T]``."""

    ranges: Ranges
    used: Tensor  # [bands, T + 1], how many rows before each one use a band
    seen: Tensor  # [T], keys of each row
    farthest: int
    farthest_key: int
    there: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, ranges: Ranges, key_maps: Sequence[KeyMap]) -> _Rows:
        plan = ranges.plan
        counts = torch.stack(plan.hi) - torch.stack(plan.lo)
        used = torch.nn.functional.pad((counts > 0).cumsum(dim=1), (1, 0))
        # Measured: a key map of another package may place keys behind their index.
        farthest_key = max(int(to(torch.arange(plan.stop)).max()) for to in key_maps)
        return cls(ranges, used, counts.sum(dim=0), int(torch.stack(plan.q_pos).max()), farthest_key)

    def on(self, device: torch.device, key_maps: Sequence[KeyMap]) -> tuple[Tensor, Tensor, Tensor]:
        if device not in self.there:
            with torch.inference_mode(False):  # kept for later calls, which may be outside of it
                plan = self.ranges.plan
                keys = torch.stack([to(torch.arange(plan.stop)) for to in key_maps])
                self.there[device] = plan.ranges(device), plan.positions(device), keys.to(device)
        return self.there[device]


class RowTables:
    """Rows of a method under which a query sees the same alone and in company.

    Args:
        compute: the ranges of queries ``0 : stop``.
        bands: how many these are at most.
        key_maps: the stored rotations of the keys.
    """

    def __init__(self, compute: Callable[[int], Ranges], bands: int, key_maps: Sequence[KeyMap]) -> None:
        self._compute, self._key_maps, self._most = compute, key_maps, MOST // bands
        self._rows: _Rows | None = None  # replaced as one, since threads share it

    def ranges(self, start: int, stop: int, device: torch.device | None) -> Ranges | None:
        """The keys of queries ``start : stop``, ready for a kernel of the device if one is given.

        None if these are not worth keeping.
        """
        rows = self._up_to(start, stop)
        if rows is None:
            return None
        plan, part = rows.ranges.plan, slice(start, stop)
        used = rows.used[:, [start, stop]].diff(dim=1).flatten().tolist()
        bands = [n for n, count in enumerate(used) if count]

        def of(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(xs[n][part] for n in bands)

        own = Plan(start, stop, tuple(plan.bands[n] for n in bands), of(plan.lo), of(plan.hi), of(plan.q_pos))
        if device is not None:
            ranges, positions, _ = rows.on(device, self._key_maps)
            ranges, positions = _some(ranges, bands)[:, :, part], _some(positions, bands)[:, part]
            own.give(ranges.contiguous(), int(rows.seen[part].max()), positions, rows.farthest)
        return Ranges(own, tuple(rows.ranges.rotations[n] for n in bands))

    def key_positions(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, int] | None:
        """Of keys ``start : stop`` the positions ``[rotations, T]`` on a device, and a bound that they stay within."""
        rows = self._up_to(start, stop)
        if rows is None:
            return None
        return rows.on(device, self._key_maps)[2][:, start:stop], rows.farthest_key

    def _up_to(self, start: int, stop: int) -> _Rows | None:
        if start < 0:  # tokens of padding have no rows
            return None
        rows = self._rows
        if rows is not None and stop <= rows.ranges.plan.stop:
            return rows
        if stop > self._most or (stop - start) * _REPAID_BY < stop:
            return None
        held = 0 if rows is None else rows.ranges.plan.stop
        with torch.inference_mode(False):  # kept for later calls, which may be outside of it
            rows = _Rows.of(self._compute(min(max(stop, 2 * held), self._most)), self._key_maps)
        self._rows = rows
        return rows


def _some(x: Tensor, bands: Sequence[int]) -> Tensor:
    """The given ones of ``x`` ``[bands, ...]``, a view if they follow each other."""
    first, last = bands[0], bands[-1]
    whole = x[first : last + 1]
    return whole if len(bands) == len(whole) else torch.stack([x[n] for n in bands])
