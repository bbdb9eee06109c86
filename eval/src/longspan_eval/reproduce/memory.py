"""Peak memory of a piece of work: on CUDA as torch counts it, on Linux the process's resident memory."""

from __future__ import annotations

import ctypes
import gc
import math
from contextlib import suppress
from pathlib import Path

import torch

from longspan.machine.memory import number_in

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """``with PeakMemory(device) as peak: …``, and then ``peak.bytes``.

    That is how much more memory was in use at the highest point than before the work. On the CPU the system counts
    resident memory in whole pages, and what the process freed before may be used again without being counted; so what
    can be given back is given back first. NaN if the system does not count it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.bytes = math.nan
        self._before = math.nan

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        elif self._device.type == "cpu":
            with suppress(OSError, AttributeError):  # another C library, or another system
                ctypes.CDLL(None).malloc_trim(0)
            with suppress(OSError):
                _CLEAR.write_text("5")  # the peak begins anew at what is in use now
                self._before = _status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
        elif not math.isnan(self._before):
            self.bytes = max(_status("VmHWM") - self._before, 0.0)


def _status(name: str) -> float:
    kilobytes = number_in(_STATUS, rf"{name}:\s+")
    return math.nan if kilobytes is None else 1024.0 * kilobytes
