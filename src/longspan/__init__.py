"""longspan: let any language model with rotary positions (RoPE) read far beyond its trained window, without training.

Each name is imported at its first use: ``import longspan`` alone loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.version import __version__ as __version__

if TYPE_CHECKING:
    from longspan.bundled import bundled_calibration, load_bundled
    from longspan.calibration import Calibration
    from longspan.doctor import Diagnosis, diagnose
    from longspan.documents import Answer, Document, Passage, read
    from longspan.errors import AttachError, CacheError, CalibrationError, DocumentError, LongspanError
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

_WHERE = {
    "recording": ("record",),
    "bundled": ("bundled_calibration", "load_bundled"),
    "calibration": ("Calibration",),
    "doctor": ("Diagnosis", "diagnose"),
    "documents": ("Answer", "Document", "Passage", "read"),
    "errors": ("AttachError", "CacheError", "CalibrationError", "DocumentError", "LongspanError"),
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
    "Answer",
    "AttachError",
    "CacheError",
    "Calibration",
    "CalibrationError",
    "Diagnosis",
    "Document",
    "DocumentError",
    "DynamicNTK",
    "Full",
    "InfLLM",
    "LMInfinite",
    "LongHeads",
    "LongspanCache",
    "LongspanError",
    "Method",
    "Passage",
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
    "read",
    "record",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # later accesses bypass __getattr__
    return value


def __dir__() -> list[str]:
    dunders = {name for name in globals() if name.startswith("__") and name.endswith("__")}
    return sorted({*dunders, *__all__})
