"""Resources for long texts: a machine's cores, memory, disk, GPU, and kernels that run."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from longspan.errors import LongspanError
from longspan.kernels.banded import Impl
from longspan.machine.cpu import cores, processor
from longspan.machine.disk import IN_MEMORY, file_system
from longspan.machine.memory import free_memory, memory_left, total_memory
from longspan.memory import check_tier
from longspan.model.describe import describe_kernels

CPU = torch.device("cpu")
_TRITON = "in Triton, for a GPU"


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: its name, compute capability, and bytes of memory."""

    name: str
    capability: str
    total: int
    free: int


@dataclass(frozen=True)
class Kernels:
    """One kind of kernels: whether they run here, and by what, or why they do not."""

    name: str
    run: bool
    said: str


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        system, processor: as they call themselves.
        cores: that this process may use. threads: that torch computes on.
        memory_total, memory_free: bytes of the system's memory; free is what a container's limit leaves of it.
        memory_limited: whether such a limit is less than what the system has free.
        disk: the folder of the tier ``"disk"``. disk_free: bytes. disk_in_memory: whether the folder lies in memory.
        gpus: CUDA devices that torch sees.
        kernels: which of them run.
    """

    system: str
    processor: str
    cores: int
    threads: int
    memory_total: int | None
    memory_free: int | None
    memory_limited: bool
    disk: str
    disk_free: int
    disk_in_memory: bool
    gpus: tuple[Gpu, ...]
    kernels: tuple[Kernels, ...]


def look(kv_dir: str | os.PathLike[str] | None = None) -> Machine:
    """Look at this machine. May compile the kernels in C, which takes seconds.

    Args:
        kv_dir: the folder for the tier ``"disk"``; the system's folder for temporary files unless given.

    Raises:
        ValueError: ``kv_dir`` is no folder.
    """
    folder = check_tier("disk", kv_dir) or Path(tempfile.gettempdir())
    free, granted = free_memory(CPU), memory_left()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return Machine(
        system=f"{platform.system()} {platform.release()}, {versions}",
        processor=processor(),
        cores=cores(),
        threads=torch.get_num_threads(),
        memory_total=total_memory(),
        memory_free=free,
        memory_limited=granted is not None and free == granted,
        disk=str(folder.resolve()),
        disk_free=shutil.disk_usage(folder).free,
        disk_in_memory=file_system(folder) in IN_MEMORY,
        gpus=tuple(_gpu(n) for n in range(torch.cuda.device_count())),
        kernels=_kernels(),
    )


def _kernels() -> tuple[Kernels, ...]:
    no_gpu = Kernels(_TRITON, False, "this torch sees no CUDA device")
    usable = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    gpu = torch.device("cuda") if torch.cuda.is_available() else CPU  # on a CPU Triton's interpreter runs them
    return (
        _kind("in C, for a CPU", "compiled", CPU),
        _kind(_TRITON, "triton", gpu) if usable else no_gpu,
        Kernels("of torch's operations", True, "wherever torch runs; decoding several times slower than in C"),
    )


def _kind(name: str, impl: Impl, device: torch.device) -> Kernels:
    try:
        words, _ = describe_kernels(impl, device)
    except LongspanError as error:
        return Kernels(
            name, False, str(error).removeprefix(f"impl='{impl}' cannot run: ").partition("; leave it out")[0]
        )
    return Kernels(name, True, words.removeprefix(f"{impl}; ") if words != impl else f"on {device}")


def _gpu(number: int) -> Gpu:
    found = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    return Gpu(found.name, f"{found.major}.{found.minor}", total, free)
