"""longspan: let any LLM with rotary positions read far beyond its trained window, with no training."""

from longspan.analysis import record
from longspan.bundled import bundled_calibration, load_bundled
from longspan.calibration import Calibration
from longspan.errors import AttachError, CacheError, CalibrationError, LongspanError
from longspan.hf import LongspanCache, Report, calibrate, extend, extended, graphed, inspect, new_cache, restore
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
from longspan.rope import NTK, PI, Angles, DynamicNTK, YaRN

__version__ = "0.1.0"

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
    "extend",
    "extended",
    "graphed",
    "inspect",
    "load_bundled",
    "new_cache",
    "record",
    "restore",
]
