"""A decoding step whose operations are the same at every length, as a CUDA graph replays them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.attender import Attender
from longspan.attend.sinks import with_sinks
from longspan.errors import CacheError, LongspanError
from longspan.index import equal_runs
from longspan.kernels.banded import triton
from longspan.rope import Rope, Table, cos_sin
from longspan.store import KVStore


def why_not_fixed(attender: Attender) -> str | None:
    """Why a step of this method is not the same at every length, or None."""
    name = attender.method.name
    if attender.method.selects:
        return f"{name} chooses keys by looking at them, and what it does at a step depends on the length"
    if attender.method.angles.dynamic:
        return f"the angles of {name} follow the length, so every key is turned at every step"
    return None


class FixedStep:
    """One new token in all layers. What depends on the length lies in tensors that ``move`` fills.

    Those are the place that the new token goes to, each band's range of keys, and cos and sin of the bands' queries and
    of the new key. All layers and replays read them where they lie.

    Args:
        attender: of a method for which ``why_not_fixed`` is None.
        padding: padding tokens at the start of each row.
        capacity: tokens the stores have room for; the kernel is cut into as many parts as that many keys need.
        device: of all layers.
    """

    def __init__(self, attender: Attender, padding: Sequence[int], capacity: int, device: torch.device) -> None:
        if (reason := why_not_fixed(attender)) is not None:
            raise LongspanError(reason)
        self.capacity, self._attender, self._padding = capacity, attender, tuple(padding)
        self._bands, self._maps = attender.method.bands(attender.window), attender.key_maps
        self._which = triton.which([band.k_pos for band in self._bands])
        self._order = [self._maps.index(k) for k in dict.fromkeys(band.k_pos for band in self._bands)]
        self._runs = [(a, b, self._padding[a]) for a, b in equal_runs(self._padding)]
        self._place = _room((1,), torch.int64, device)
        self._ranges = _room((len(self._runs), len(self._bands), 2, 1), torch.int32, device)
        self._turns: dict[Table, tuple[Tensor, Tensor]] = {}  # [runs, bands and maps, r / 2]
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
        for table in self._turns:
            self._fill(table)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rope: Rope,
        *,
        scale: float,
        store: KVStore,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of the new token, which is written to the store and counts as held once its length says so.

        Args:
            q, k, v: ``[B, H, 1, D]``, ``[B, Hkv, 1, D]``, ``[B, Hkv, 1, Dv]``, unrotated.
            rope, scale, softcap, sinks: the layer's; see ``Attender``.

        Returns:
            ``[B, H, 1, Dv]``.

        Raises:
            LongspanError: the kernel cannot run on these tensors.
        """
        own = rope.paired()
        cos, sin = self._angles(rope.table, q.device)
        q, k = rope.pair(q), rope.pair(k)
        turned = [own.rotate_k(k, *self._key_turn(cos, sin, n)) for n in range(len(self._maps))]
        store.put(self._place, turned, v)
        *keys, values = store.room
        by_band = [keys[self._maps.index(band.k_pos)] for band in self._bands]
        held = [keys[n] for n in self._order]
        if (reason := triton.why_not(q, by_band, values)) is not None:
            raise LongspanError(f"a step of fixed shape runs on Triton's kernel, which cannot run here: {reason}")
        outs = []
        for run, (a, b, pad) in enumerate(self._runs):
            own_keys, own_values = [x[a:b, :, pad:] for x in held], values[a:b, :, pad:]
            lay = triton.Held(own_keys, self._which, own_values, self._ranges[run])
            rows, bands = q[a:b], len(self._bands)
            angles = cos[run, :bands, None], sin[run, :bands, None]
            if own.norm_q is not None:
                rows = torch.stack([own.rotate_q(rows, c, s) for c, s in zip(*angles, strict=True)])
            out, lse = triton.launch(
                rows,
                lay,
                None if own.norm_q is not None else angles,
                own,
                scale=scale,
                softcap=softcap,
                first=0,
                reach=self.capacity,
            )
            outs.append(with_sinks(out, lse, sinks))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _range(self, i: int) -> Tensor:
        """``[bands, 2, 1]``: the keys of query ``i`` in each band, none where it uses none."""
        at = torch.tensor([i])
        pairs = []
        for band in self._bands:
            lo, hi = band.keys.lo(at).clamp(min=0), torch.minimum(band.keys.hi(at), at + 1)
            pairs.append(torch.stack((lo, torch.maximum(lo, hi))))
        return torch.stack(pairs).int()

    def _angles(self, own: Table, device: torch.device) -> tuple[Tensor, Tensor]:
        if own not in self._turns:
            shape = len(self._runs), len(self._bands) + len(self._maps), own.inv_freq.numel()
            self._turns[own] = _room(shape, torch.float32, device), _room(shape, torch.float32, device)
            self._fill(own)
        return self._turns[own]

    def _fill(self, own: Table) -> None:
        attender, pads = self._attender, [pad for _, _, pad in self._runs]
        i = torch.tensor([self._past - pad for pad in pads])
        cos, sin = self._turns[own]
        table = attender.table(own, 0)
        at = torch.stack([*(band.q_pos(i) for band in self._bands), *(to(i) for to in self._maps)], dim=1)
        factors = torch.ones(len(pads), at.shape[1], 1)
        for run, pad in enumerate(pads):
            factors[run, : len(self._bands)] = attender.method.query_factor(attender.window, self._past + 1 - pad)
        for to, x in zip((cos, sin), cos_sin(table, at.clamp(min=0), cos.device), strict=True):
            to.copy_(x * factors.to(x.device))

    def _key_turn(self, cos: Tensor, sin: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the new key under map ``n``, ``[1, r / 2]``, or ``[B, 1, r / 2]`` where padding differs."""
        n += len(self._bands)
        if len(self._runs) == 1:
            return cos[0, n : n + 1], sin[0, n : n + 1]
        rows = [run for run, (a, b, _) in enumerate(self._runs) for _ in range(a, b)]
        return torch.stack([cos[run, n : n + 1] for run in rows]), torch.stack([sin[run, n : n + 1] for run in rows])


@torch.inference_mode(False)  # made in inference mode, they could not be filled outside it
def _room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
