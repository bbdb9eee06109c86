"""Methods: each file composes a selection, a position map and angles; ``METHODS`` maps names to classes."""

from longspan.methods.base import Method
from longspan.methods.dca import DCA
from longspan.methods.esa import ESA
from longspan.methods.infllm import InfLLM
from longspan.methods.known import KnownMethods
from longspan.methods.lm_infinite import LMInfinite
from longspan.methods.longheads import LongHeads
from longspan.methods.rerope import ReRoPE
from longspan.methods.scaling import Full, FullDynamicNTK, FullNTK, FullPI, FullYaRN
from longspan.methods.self_extend import SelfExtend
from longspan.methods.streaming_llm import StreamingLLM
from longspan.methods.string import String

METHODS = KnownMethods(
    (
        Full,
        FullPI,
        FullNTK,
        FullDynamicNTK,
        FullYaRN,
        ReRoPE,
        SelfExtend,
        String,
        StreamingLLM,
        LMInfinite,
        DCA,
        LongHeads,
        ESA,
        InfLLM,
    )
)
"""All methods by the name that ``extend`` and the command line accept, those of installed packages among them."""

__all__ = [
    "DCA",
    "ESA",
    "METHODS",
    "Full",
    "InfLLM",
    "LMInfinite",
    "LongHeads",
    "Method",
    "ReRoPE",
    "SelfExtend",
    "StreamingLLM",
    "String",
]
