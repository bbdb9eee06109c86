"""longspan: let any LLM with rotary positions read far beyond its trained window, with no training."""

from longspan.bundled import load_bundled
from longspan.errors import AttachError, CacheError, LongspanError
from longspan.hf import LongspanCache, Report, extend, extended, inspect, new_cache, restore
from longspan.methods import DCA, METHODS, Full, LMInfinite, Method, ReRoPE, SelfExtend, StreamingLLM, String
from longspan.rope import NTK, PI, Angles, DynamicNTK, YaRN

__version__ = "0.1.0"

__all__ = [
    "DCA",
    "METHODS",
    "NTK",
    "PI",
    "Angles",
    "AttachError",
    "CacheError",
    "DynamicNTK",
    "Full",
    "LMInfinite",
    "LongspanCache",
    "LongspanError",
    "Method",
    "ReRoPE",
    "Report",
    "SelfExtend",
    "StreamingLLM",
    "String",
    "YaRN",
    "extend",
    "extended",
    "inspect",
    "load_bundled",
    "new_cache",
    "restore",
]
