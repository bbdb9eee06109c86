"""One rule for all kernels: the implementation that runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

Impl = Literal["auto", "triton", "compiled", "flash_cpu", "torch", "reference"]
Reasons = Mapping[str, Callable[[], str | None]]

# Order of "auto" by the device of the queries, first to last. "torch" follows; "reference" runs only if it is named.
ORDER: Mapping[str, tuple[Impl, ...]] = {"cuda": ("triton",), "cpu": ("compiled", "flash_cpu")}

_FLASH_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def resolve(impl: Impl, device: torch.device, unsupported: Reasons, slower: Collection[str] = ()) -> Impl:
    """The implementation that runs.

    Args:
        impl: ``"auto"``, which takes the first of ``ORDER`` that can run here, or a name.
        device: of the queries.
        unsupported: for each implementation besides ``torch`` and ``reference``, which every kernel has and which run
            everywhere, a function that returns the reason why it cannot run on these inputs, or None.
        slower: implementations that ``"auto"`` passes over, because others are faster on inputs of these sizes.

    Raises:
        ValueError: there is no implementation of this name, or the named one cannot run here.
    """
    if impl == "auto":
        for name in ORDER.get(device.type, ()):
            if name in unsupported and name not in slower and unsupported[name]() is None:
                return name
        return "torch"
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, not {impl!r}")
    if impl in ("torch", "reference"):
        return impl
    reason = unsupported[impl]() if impl in unsupported else "this kernel has no such implementation"
    if reason is not None:
        raise ValueError(f"{impl} cannot run here: {reason}; use impl='torch'")
    return impl


def flash_unsupported_reason(q: Tensor, softcap: float | None) -> str | None:
    """Why torch's flash attention for CPU cannot run on queries ``q`` of any shape, or None."""
    if q.device.type != "cpu":
        return f"the tensors are on {q.device.type}"
    if q.dtype not in _FLASH_DTYPES:
        return f"no {q.dtype}"
    return "torch's flash attention has no softcap" if softcap is not None else None
