"""longspan: let any LLM with rotary positions read far beyond its trained window, with no training.

Names are imported when they are first used: ``import longspan`` alone loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.bundled import bundled_calibration, load_bundled
    from longspan.calibration import Calibration
    from longspan.doctor import Diagnosis, diagnose
    from longspan.errors import AttachError, CacheError, CalibrationError, LongspanError
    from longspan.hf import (
        LongspanCache,
        Report,
        calibrate,
        extend,
        extended,
        graphed,
        inspect,
        new_cache,
        progress,
        restore,
    )
    from longspan.methods import (
        DCA,
        ESA,
        METHODS,
        Full,
        InfLLM,
        LMInfinite,
        LongHeads,
        Method,
        ReRoPE,
        SelfExtend,
        StreamingLLM,
        String,
    )
    from longspan.recording.record import record
    from longspan.rope import NTK, PI, Angles, DynamicNTK, YaRN

__version__ = "0.1.0"

_WHERE = {
    "recording": ("record",),
    "bundled": ("bundled_calibration", "load_bundled"),
    "calibration": ("Calibration",),
    "doctor": ("Diagnosis", "diagnose"),
    "errors": ("AttachError", "CacheError", "CalibrationError", "LongspanError"),
    "hf": (
        "LongspanCache", "Report", "calibrate", "extend", "extended", "graphed", "inspect", "new_cache", "progress",
        "restore",
    ),
    "methods": (
        "DCA", "ESA", "METHODS", "Full", "InfLLM", "LMInfinite", "LongHeads", "Method", "ReRoPE", "SelfExtend",
        "StreamingLLM", "String",
    ),
    "rope": ("NTK", "PI", "Angles", "DynamicNTK", "YaRN"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DCA",
    "ESA",
    "METHODS",
    "NTK",
    "PI",
    "Angles",
    "AttachError",
    "CacheError",
    "Calibration",
    "CalibrationError",
    "Diagnosis",
    "DynamicNTK",
    "Full",
    "InfLLM",
    "LMInfinite",
    "LongHeads",
    "LongspanCache",
    "LongspanError",
    "Method",
    "ReRoPE",
    "Report",
    "SelfExtend",
    "StreamingLLM",
    "String",
    "YaRN",
    "bundled_calibration",
    "calibrate",
    "diagnose",
    "extend",
    "extended",
    "graphed",
    "inspect",
    "load_bundled",
    "new_cache",
    "progress",
    "record",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # from now on an attribute like any other
    return value


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__") and name.endswith("__")}
    return sorted({*own, *__all__})
