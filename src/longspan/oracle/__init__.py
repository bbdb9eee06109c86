"""The methods in fp64: dense and slow, without bands, kernels or indices. Only tests and benchmarks use them.

``longspan.bands`` has the legend of shapes.
"""

from longspan.oracle.attention import oracle
from longspan.oracle.baselines import best_blocks, best_middle, sinks_recent_and_middle
from longspan.oracle.choices import best_chunks, best_tokens, chunk_scores, far_and_near, slots, token_scores
from longspan.oracle.remaps import seen_far, seen_in_dual_chunks, seen_ranked
from longspan.oracle.statements import Inputs, KeptMask, chosen, laid, marked, states

__all__ = [
    "KeptMask",
    "Inputs",
    "best_blocks",
    "best_chunks",
    "best_middle",
    "best_tokens",
    "chosen",
    "chunk_scores",
    "far_and_near",
    "laid",
    "marked",
    "oracle",
    "seen_far",
    "seen_in_dual_chunks",
    "seen_ranked",
    "sinks_recent_and_middle",
    "slots",
    "states",
    "token_scores",
]
