"""One new token whose operations are the same at every length, as a CUDA graph replays them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.layer import LayerCall
from longspan.attend.sinks import with_sinks
from longspan.attend.steps.filled import HostFilled
from longspan.attend.steps.graph_choice import RecordedChoice, unrecordable_choice
from longspan.attend.tables import Tables
from longspan.choosing.unit_index import equal_runs
from longspan.errors import CacheError, LongspanError
from longspan.kernels.banded import triton
from longspan.memory import KVStore
from longspan.rope import CosSin, Table


def unrecordable_reason(tables: Tables) -> str | None:
    """Why a step of a method with these tables is not the same at every length, or None."""
    method = tables.method
    if tables.chooser is not None and (reason := unrecordable_choice(method.name, tables.chooser)) is not None:
        return reason
    if method.angles.dynamic:
        return f"the angles of {method.name} follow the length, so every key is rotated at every step"
    return None


class RecordedStep:
    """One new token in all layers. What depends on the length lies in tensors that ``move`` fills.

    Those are the place that the new token goes to, each band's range of keys, and cos and sin of the bands' queries and
    of the new key; and what ``RecordedChoice`` has, of methods that choose. All layers and replays read them where they
    lie.

    Args:
        tables: what queries see, of a method for which ``unrecordable_reason`` is None.
        padding: padding tokens at the start of each row.
        capacity: tokens the stores have room for; the kernel is cut into as many parts as that many keys need.
        device: of all layers.
        layers: how many there are.
        past: tokens stored before the first one that it is for.
    """

    def __init__(
        self, tables: Tables, padding: Sequence[int], capacity: int, device: torch.device, layers: int, past: int
    ) -> None:
        if (reason := unrecordable_reason(tables)) is not None:
            raise LongspanError(reason)
        self.capacity, self._tables, self._padding, self._device = capacity, tables, tuple(padding), device
        self._maps, self._runs = tables.key_maps, equal_runs(self._padding)
        self._choice: RecordedChoice | None = None
        bands, self._reach = tables.method.bands(tables.window), capacity
        used = range(len(bands))
        if tables.chooser is not None:
            self._choice = RecordedChoice(tables, self._runs, layers, device, past)
            used, self._reach = self._choice.bands(used), self._choice.reach(capacity)
        self._bands = [bands[n] for n in used]
        self._number = {n: slot for slot, n in enumerate(used)}  # of each band among those
        self._which = triton.which([band.k_pos for band in self._bands])
        self._order = [self._maps.index(k) for k in dict.fromkeys(band.k_pos for band in self._bands)]
        ranges = len(self._runs), len(self._bands), 2, 1
        self._filled = HostFilled(device, ((1,), torch.int64), (ranges, torch.int32))
        self._place, self._ranges = self._filled.device
        self._angles: dict[Table, HostFilled] = {}  # cos and sin, [runs, bands and maps, r / 2] each
        self._past = 0

    def holds(self, past: int) -> bool:
        """Whether it is for the token after ``past`` stored ones: there is room, and the same rows choose."""
        if not max(self._padding) <= past < self.capacity:
            return False
        return self._choice is None or self._choice.holds(past)

    def move(self, past: int, kept_at: Sequence[int]) -> None:
        """The next step is that of the token after ``past`` stored ones.

        Args:
            kept_at: for each layer ``Slot.kept_at`` of it.

        Raises:
            CacheError: it is not for this token.
        """
        if not self.holds(past):
            raise CacheError(f"a step after {past} tokens, of rows with padding {self._padding} in {self.capacity}")
        self._past = past
        place, ranges = self._filled.host
        place[0] = past
        for run, (_, _, pad) in enumerate(self._runs):
            ranges[run] = self._range(past - pad)
        self._filled.fill()
        for own, angles in self._angles.items():
            self._fill(own, angles)
        if self._choice is not None:
            self._choice.move(past, kept_at)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore) -> Tensor:
        """Attention of the new token, which is written to the store and counts as held once its length says so.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            layer: what the layer brings besides; its padding is this step's.

        Returns:
            ``[B, 1, H, Dv]``.

        Raises:
            LongspanError: the kernel cannot run on these tensors.
        """
        rope = layer.rope.paired()
        cos, sin = self._cos_sin(layer.rope.table)
        q, k = layer.rope.pair(q), layer.rope.pair(k)
        selector = None if self._choice is None else self._choice.take(q, k, v, layer, store, self._place)
        rotated = [rope.rotate_k(k, *self._of_new_key(cos, sin, n)) for n in range(len(self._maps))]
        store.put(self._place, rotated, v)
        *keys, values = store.allocated
        of_bands = [keys[self._maps.index(band.k_pos)] for band in self._bands]
        distinct = [keys[n] for n in self._order]
        if (reason := triton.unsupported_reason(q, of_bands, values, layer.scale)) is not None:
            raise LongspanError(f"a recorded step needs the Triton kernel, which cannot run here: {reason}")
        outs = []
        for run, (a, b, pad) in enumerate(self._runs):
            own_keys, own_values = [x[a:b, :, pad:] for x in distinct], values[a:b, :, pad:]
            laid_out = triton.LaidOut(own_keys, self._which, own_values, self._ranges[run])
            own_q, bands = q[a:b], len(self._bands)
            by_band = cos[run, :bands, None], sin[run, :bands, None]
            angles: CosSin | None = by_band
            if rope.norm_q is not None:  # the kernel takes what comes out of it
                own_q, angles = torch.stack([rope.rotate_q(own_q, c, s) for c, s in zip(*by_band, strict=True)]), None
            out, lse = triton.launch(
                own_q, laid_out, angles, rope, scale=layer.scale, softcap=layer.softcap, first=0, reach=self._reach
            )
            if self._choice is not None and selector is not None:
                self._choice.add(out, lse, run, q[a:b], layer, store, selector)
            outs.append(with_sinks(out, lse, layer.sinks).transpose(1, 2))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _range(self, token: int) -> Tensor:
        """``[bands, 2, 1]``: the keys of a row's ``token`` in each band, none if it uses none."""
        plan = self._tables.single(token).plan
        ranges = torch.zeros(len(self._bands), 2, 1, dtype=torch.int32, device="cpu")
        for band, lo, hi in zip(plan.bands, plan.lo, plan.hi, strict=True):
            if (n := self._number.get(band)) is not None:
                ranges[n, 0, 0], ranges[n, 1, 0] = lo[token - plan.start], hi[token - plan.start]
        return ranges

    def _cos_sin(self, table: Table) -> tuple[Tensor, Tensor]:
        if table not in self._angles:
            shape = len(self._runs), len(self._bands) + len(self._maps), table.inv_freq.numel()
            self._angles[table] = HostFilled(self._device, *((shape, torch.float32),) * 2)
            self._fill(table, self._angles[table])
        cos, sin = self._angles[table].device
        return cos, sin

    def _fill(self, table: Table, filled: HostFilled) -> None:
        for run, (_, _, pad) in enumerate(self._runs):
            token = self._past - pad
            tables = self._tables.token(self._tables.angles(table), token)
            of_bands = [self._number.get(band) for band in tables.ranges.plan.bands]
            numbers = [*of_bands, *range(len(self._bands), len(self._bands) + len(self._maps))]
            for n, angles in zip(numbers, (*tables.queries, *tables.keys), strict=True):
                for to, part in zip(filled.host, angles, strict=True) if n is not None else ():
                    to[run, n] = part[token - tables.start]
        filled.fill()

    def _of_new_key(self, cos: Tensor, sin: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the new key under map ``n``, ``[1, r / 2]``, or ``[B, 1, r / 2]`` if padding differs."""
        n += len(self._bands)
        if len(self._runs) == 1:
            return cos[0, n : n + 1], sin[0, n : n + 1]
        rows = [run for run, (a, b, _) in enumerate(self._runs) for _ in range(a, b)]
        return torch.stack([cos[run, n : n + 1] for run in rows]), torch.stack([sin[run, n : n + 1] for run in rows])
