"""longspan: let language models with rotary positions (RoPE) read far beyond their trained window, without training.

Each name is imported at its first use: ``import longspan`` alone loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.version import __version__ as __version__

if TYPE_CHECKING:
    from longspan.bundled import load_bundled as load_bundled
    from longspan.bundled.calibrated import bundled_calibration as bundled_calibration
    from longspan.calibration import Calibration as Calibration
    from longspan.doctor import Diagnosis as Diagnosis
    from longspan.doctor import diagnose as diagnose
    from longspan.documents import Answer as Answer
    from longspan.documents import Document as Document
    from longspan.documents import Passage as Passage
    from longspan.documents import read as read
    from longspan.errors import AttachError as AttachError
    from longspan.errors import CacheError as CacheError
    from longspan.errors import CalibrationError as CalibrationError
    from longspan.errors import DocumentError as DocumentError
    from longspan.errors import LongspanError as LongspanError
    from longspan.hf import LongspanCache as LongspanCache
    from longspan.hf import Report as Report
    from longspan.hf import calibrate as calibrate
    from longspan.hf import drafts_of as drafts_of
    from longspan.hf import extend as extend
    from longspan.hf import extended as extended
    from longspan.hf import graphed as graphed
    from longspan.hf import inspect as inspect
    from longspan.hf import new_cache as new_cache
    from longspan.hf import progress as progress
    from longspan.hf import restore as restore
    from longspan.loading.models import load as load
    from longspan.methods import DCA as DCA
    from longspan.methods import ESA as ESA
    from longspan.methods import METHODS as METHODS
    from longspan.methods import Full as Full
    from longspan.methods import InfLLM as InfLLM
    from longspan.methods import LMInfinite as LMInfinite
    from longspan.methods import LongHeads as LongHeads
    from longspan.methods import Method as Method
    from longspan.methods import ReRoPE as ReRoPE
    from longspan.methods import SelfExtend as SelfExtend
    from longspan.methods import StreamingLLM as StreamingLLM
    from longspan.methods import String as String
    from longspan.recording.record import record as record
    from longspan.rope import NTK as NTK
    from longspan.rope import PI as PI
    from longspan.rope import Angles as Angles
    from longspan.rope import DynamicNTK as DynamicNTK
    from longspan.rope import YaRN as YaRN

_WHERE = {
    "recording": ("record",),
    "bundled": ("load_bundled",),
    "bundled.calibrated": ("bundled_calibration",),
    "calibration": ("Calibration",),
    "doctor": ("Diagnosis", "diagnose"),
    "documents": ("Answer", "Document", "Passage", "read"),
    "errors": ("AttachError", "CacheError", "CalibrationError", "DocumentError", "LongspanError"),
    "hf": (
        "LongspanCache", "Report", "calibrate", "drafts_of", "extend", "extended", "graphed", "inspect", "new_cache",
        "progress", "restore",
    ),
    "loading.models": ("load",),
    "methods": (
        "DCA", "ESA", "METHODS", "Full", "InfLLM", "LMInfinite", "LongHeads", "Method", "ReRoPE", "SelfExtend",
        "StreamingLLM", "String",
    ),
    "rope": ("NTK", "PI", "Angles", "DynamicNTK", "YaRN"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'longspan' has no attribute {name!r}")
    value = getattr(import_module(f"longspan.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # later accesses bypass __getattr__
    return value


def __dir__() -> list[str]:
    dunders = {name for name in globals() if name.startswith("__") and name.endswith("__")}
    return sorted({*dunders, *__all__})
