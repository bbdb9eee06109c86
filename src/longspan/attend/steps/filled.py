"""Memory of a device that the host fills before each replay of a recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import torch

_ALIGN = 16  # bytes at whose multiples a part begins, as kernels may assume of a tensor


class HostFilled:
    """Tensors that are filled together by one copy from the host, which waits for nothing.

    Args:
        parts: their shapes and dtypes.

    Attributes:
        host, device: each of them on the CPU, to be written to, and where kernels read it; zeros at first.
    """

    @torch.inference_mode(False)  # made in inference mode, they could not be filled outside it
    def __init__(self, device: torch.device, *parts: tuple[Sequence[int], torch.dtype]) -> None:
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in parts]
        ends = list(accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes))
        places = [slice(end - -(-size // _ALIGN) * _ALIGN, end) for size, end in zip(sizes, ends, strict=True)]
        self._all = [torch.zeros(ends[-1], dtype=torch.uint8, device=where) for where in (torch.device("cpu"), device)]
        self.host, self.device = (
            [
                memory[place][:size].view(dtype).view(*shape)
                for place, size, (shape, dtype) in zip(places, sizes, parts, strict=True)
            ]
            for memory in self._all
        )

    def fill(self) -> None:
        """Copy what was written to ``host``; it may be written to again at once."""
        host, device = self._all
        # What is not pinned is read before the call returns, though the device may copy it later.
        device.copy_(host, non_blocking=True)
