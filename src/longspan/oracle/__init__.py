"""The methods in fp64: dense and slow, without bands, kernels or indices. Only tests and benchmarks use them.

``longspan.bands`` has the legend of shapes.
"""

from longspan.oracle.attention import oracle
from longspan.oracle.baselines import sinks_recent_and_middle, topk_blocks, topk_middle
from longspan.oracle.choices import chunk_scores, far_and_near, slots, token_scores, topk_chunks, topk_tokens
from longspan.oracle.remaps import seen_far, seen_in_dual_chunks, seen_ranked
from longspan.oracle.statements import Inputs, KeptMask, chosen, laid, marked, states

__all__ = [
    "Inputs",
    "KeptMask",
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
    "topk_blocks",
    "topk_chunks",
    "topk_middle",
    "topk_tokens",
]
