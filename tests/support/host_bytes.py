"""How much a run makes in the host's memory, and copies from there to a device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HostBytes(TorchDispatchMode):
    """Counts while it is entered; of a device that is not there, ``meta`` stands for it.

    Attributes:
        made: bytes of tensors that operations made on the host, views apart.
        copied: bytes of the host's tensors that were copied to another device.
        fetched: bytes of a device's tensors that were copied to the host.
    """

    def __init__(self):
        super().__init__()
        self.made = self.copied = self.fetched = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        known = {_memory(x) for x in given if x.device.type == "cpu"}
        for x in tree_leaves(result):
            if not isinstance(x, torch.Tensor):
                continue
            if x.device.type == "cpu" and _memory(x) not in known:
                self.made += x.untyped_storage().nbytes()
                known.add(_memory(x))
                self.fetched += x.nbytes if any(one.device.type != "cpu" for one in given) else 0
            elif x.device.type != "cpu" and given and all(one.device.type == "cpu" for one in given):
                self.copied += x.nbytes
        return result

    @property
    def all(self):
        return self.made, self.copied, self.fetched


def _memory(x):
    return x.untyped_storage().data_ptr()
