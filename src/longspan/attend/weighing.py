"""The weight that queries give to groups of keys: attention whose values say which group a key belongs to."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attend.attender import Attender
from longspan.attend.layer import LayerCall
from longspan.errors import LongspanError
from longspan.memory import KVStore

_ROOM = 256  # tokens that may follow before the values are made anew
_AT_ONCE = 1 << 26  # entries of the values that stand for groups, and of what comes of them (fp32: 256 MB each)


class GroupWeights:
    """Attends as an attender does, and adds up the weights that its queries give to groups of keys.

    A weight is the query's share of attention, ``softmax_j(scores)`` of the method: over the keys that it keeps and
    chooses, each at the position that it is seen from. With ``[key j is of group g]`` in place of ``v_j`` the output of
    attention is the weight of group g, so that no method and no kernel has to know of groups.

    Args:
        attender: that of the model.
        groups: ``[N]`` int64, the group of each key; -1, and for keys after these, of none.
        count: how many groups there are.

    """

    def __init__(self, attender: Attender, groups: Tensor, count: int) -> None:
        self._attender, self._groups, self._count = attender, groups, count
        # torch's kernels alone take values of any width.
        self._twin = Attender(attender.method, attender.window, "torch", attender.calibration, "parts")
        self._total: Tensor | None = None
        self._values: tuple[tuple[int, torch.dtype, torch.device], Tensor] | None = None
        self._heads = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore) -> Tensor:
        """``Attender.run`` of one row of queries."""
        out = self._attender.run(q, k, v, layer, store)
        step, parts = max(64, _AT_ONCE // max(store.length, q.shape[1] * q.shape[2])), []
        for first in range(0, self._count, step):
            values = self._indicators(first, min(first + step, self._count), store, q.dtype)
            parts.append(self._twin.again(q, values.expand(1, v.shape[1], -1, -1), layer, store)[0].float().sum(dim=1))
        weights = torch.cat(parts, dim=-1) if parts else torch.zeros(q.shape[2], 0)
        self._total = weights if self._total is None else self._total + weights.to(self._total.device)
        self._heads += q.shape[1]
        return out

    def take(self) -> Tensor:
        """``[T, count]`` fp32, the weights of the last forward's queries, the mean over heads and layers.

        Raises:
            LongspanError: no layer has attended.
        """
        total, heads = self._total, self._heads
        if total is None:
            raise LongspanError("no layer attended, so there are no weights of attention")
        self._total, self._heads = None, 0
        return (total / heads).cpu()

    def _indicators(self, first: int, stop: int, store: KVStore, dtype: torch.dtype) -> Tensor:
        """``[N, stop - first]``: 1 where a key is of a group."""
        key = first, dtype, store.lying[-1].device
        # Layers share them if all groups go at once, and so do tokens that follow.
        if self._values is None or self._values[0] != key or len(self._values[1]) < store.length:
            values = torch.zeros(store.length + _ROOM, stop - first, dtype=dtype)
            groups = self._groups[: len(values)]
            keys = ((groups >= first) & (groups < stop)).nonzero()[:, 0]
            values[keys, groups[keys] - first] = 1
            self._values = key, values.to(key[-1])
        return self._values[1][: store.length]
