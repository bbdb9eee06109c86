"""Kernels in C for a CPU: the library that they are compiled to, and what the calls of it share.

The ``compiled.py`` of each kernel's folder calls it. The sources are in ``src/``; ``structs.h`` there declares what is
handed over. A call releases the interpreter's lock while it runs.
"""

from longspan.kernels.cpu.library import (
    DECODE_ROWS,
    KINDS,
    LANES,
    SWITCH,
    KernelSettings,
    compiler_version,
    disabled,
    forget,
    group_size,
    run,
    run_steps,
    settings,
    size_mismatch,
    tile_tokens,
    unavailable_reason,
    unsupported_reason,
)

__all__ = [
    "DECODE_ROWS",
    "KINDS",
    "LANES",
    "SWITCH",
    "KernelSettings",
    "compiler_version",
    "disabled",
    "forget",
    "group_size",
    "run",
    "run_steps",
    "settings",
    "size_mismatch",
    "tile_tokens",
    "unavailable_reason",
    "unsupported_reason",
]
