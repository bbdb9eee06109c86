"""One new token whose operations are the same at every length, as a CUDA graph replays them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.layer import LayerCall
from longspan.attend.sinks import with_sinks
from longspan.attend.tables import Tables
from longspan.errors import CacheError, LongspanError
from longspan.index import equal_runs
from longspan.kernels.banded import triton
from longspan.methods import Method
from longspan.rope import CosSin, Table
from longspan.store import KVStore


def unrecordable_reason(method: Method) -> str | None:
    """Why a step of this method is not the same at every length, or None."""
    if method.selects:
        return f"{method.name} selects keys by their content, so its operations depend on the length"
    if method.angles.dynamic:
        return f"the angles of {method.name} follow the length, so every key is rotated at every step"
    return None


class RecordedStep:
    """One new token in all layers. What depends on the length lies in tensors that ``move`` fills.

    Those are the place that the new token goes to, each band's range of keys, and cos and sin of the bands' queries and
    of the new key. All layers and replays read them where they lie.

    Args:
        tables: what queries see, of a method for which ``unrecordable_reason`` is None.
        padding: padding tokens at the start of each row.
        capacity: tokens the stores have room for; the kernel is cut into as many parts as that many keys need.
        device: of all layers.
    """

    def __init__(self, tables: Tables, padding: Sequence[int], capacity: int, device: torch.device) -> None:
        if (reason := unrecordable_reason(tables.method)) is not None:
            raise LongspanError(reason)
        self.capacity, self._tables, self._padding = capacity, tables, tuple(padding)
        self._bands, self._maps = tables.method.bands(tables.window), tables.key_maps
        self._which = triton.which([band.k_pos for band in self._bands])
        self._order = [self._maps.index(k) for k in dict.fromkeys(band.k_pos for band in self._bands)]
        self._runs = equal_runs(self._padding)
        self._place = _memory((1,), torch.int64, device)
        self._ranges = _memory((len(self._runs), len(self._bands), 2, 1), torch.int32, device)
        self._angles: dict[Table, tuple[Tensor, Tensor]] = {}  # [runs, bands and maps, r / 2]
        self._past = 0

    def move(self, past: int) -> None:
        """The next step is that of the token after ``past`` stored ones.

        Raises:
            CacheError: there is no room for it.
        """
        if not max(self._padding) <= past < self.capacity:
            raise CacheError(f"a step after {past} tokens, of rows with padding {self._padding} in {self.capacity}")
        self._past = past
        self._place.fill_(past)
        self._ranges.copy_(torch.stack([self._range(past - pad) for _, _, pad in self._runs]))
        for own, (cos, sin) in self._angles.items():
            self._fill(own, cos, sin)

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
        cos, sin = self._cos_sin(layer.rope.table, q.device)
        q, k = layer.rope.pair(q), layer.rope.pair(k)
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
                own_q, laid_out, angles, rope, scale=layer.scale, softcap=layer.softcap, first=0, reach=self.capacity
            )
            outs.append(with_sinks(out, lse, layer.sinks).transpose(1, 2))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _range(self, token: int) -> Tensor:
        """``[bands, 2, 1]``: the keys of a row's ``token`` in each band, none where it uses none."""
        plan = self._tables.single(token).plan
        ranges = torch.zeros(len(self._bands), 2, 1, dtype=torch.int32, device="cpu")
        for band, lo, hi in zip(plan.bands, plan.lo, plan.hi, strict=True):
            ranges[band, 0, 0], ranges[band, 1, 0] = lo[token - plan.start], hi[token - plan.start]
        return ranges

    def _cos_sin(self, table: Table, device: torch.device) -> tuple[Tensor, Tensor]:
        if table not in self._angles:
            shape = len(self._runs), len(self._bands) + len(self._maps), table.inv_freq.numel()
            self._angles[table] = _memory(shape, torch.float32, device), _memory(shape, torch.float32, device)
            self._fill(table, *self._angles[table])
        return self._angles[table]

    def _fill(self, table: Table, cos: Tensor, sin: Tensor) -> None:
        new = torch.zeros(2, *cos.shape, dtype=torch.float32, device="cpu")
        for run, (_, _, pad) in enumerate(self._runs):
            token = self._past - pad
            tables = self._tables.decode(self._tables.angles(table), token)
            numbers = [*tables.ranges.plan.bands, *range(len(self._bands), cos.shape[1])]
            for n, angles in zip(numbers, (*tables.queries, *tables.keys), strict=True):
                for x, part in enumerate(angles):
                    new[x, run, n] = part[token - tables.start]
        cos.copy_(new[0])
        sin.copy_(new[1])

    def _of_new_key(self, cos: Tensor, sin: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the new key under map ``n``, ``[1, r / 2]``, or ``[B, 1, r / 2]`` where padding differs."""
        n += len(self._bands)
        if len(self._runs) == 1:
            return cos[0, n : n + 1], sin[0, n : n + 1]
        rows = [run for run, (a, b, _) in enumerate(self._runs) for _ in range(a, b)]
        return torch.stack([cos[run, n : n + 1] for run in rows]), torch.stack([sin[run, n : n + 1] for run in rows])


@torch.inference_mode(False)  # made in inference mode, they could not be filled outside it
def _memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
