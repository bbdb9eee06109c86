"""The weight that queries give to groups of keys: attention whose values say which group a key belongs to."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attend.attender import Attender
from longspan.attend.layer import LayerCall
from longspan.memory import KVStore

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

    Attributes:
        heads: how many heads have attended, over all layers.
    """

    def __init__(self, attender: Attender, groups: Tensor, count: int) -> None:
        self._attender, self._groups, self._count = attender, groups, count
        # torch's kernels alone take values of any width.
        self._twin = Attender(attender.method, attender.window, "torch", attender.calibration, "parts")
        self._total: Tensor | None = None
        self._values: tuple[tuple[int, int, torch.dtype, torch.device], Tensor] | None = None
        self.heads = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore) -> Tensor:
        """``Attender.run`` of one row of queries."""
        out = self._attender.run(q, k, v, layer, store)
        step, parts = max(64, _AT_ONCE // max(store.length, q.shape[1] * q.shape[2])), []
        for first in range(0, self._count, step):
            values = self._indicators(first, min(first + step, self._count), store, q.dtype)
            parts.append(self._twin.again(q, values.expand(1, v.shape[1], -1, -1), layer, store)[0].float().sum(dim=1))
        weights = torch.cat(parts, dim=-1).cpu() if parts else torch.zeros(q.shape[2], 0)
        self._total = weights if self._total is None else self._total + weights
        self.heads += q.shape[1]
        return out

    def mean(self) -> Tensor:
        """``[T, count]`` fp32, the weights of the last forward's queries, the mean over heads and layers."""
        assert self._total is not None
        return self._total / self.heads

    def _indicators(self, first: int, stop: int, store: KVStore, dtype: torch.dtype) -> Tensor:
        """``[N, stop - first]``: 1 where a key is of a group."""
        device = store.lying[-1].device
        key = first, store.length, dtype, device
        if self._values is None or self._values[0] != key:  # the layers share them if all groups go at once
            values = torch.zeros(store.length, stop - first, dtype=dtype)
            groups = self._groups[: store.length]
            keys = ((groups >= first) & (groups < stop)).nonzero()[:, 0]
            values[keys, groups[keys] - first] = 1
            self._values = key, values.to(device)
        return self._values[1]
