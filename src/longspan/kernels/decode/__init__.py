"""One new token of a layer in one call: its key and value are stored, it scores and chooses, and it attends.

Contract. The unrotated query, key and value of a token, their channels permuted by ``order``, are stored: the key in
each stored rotation. If a ``ScoreSpec`` is given and the token chooses, entries ``first ≤ n < stop`` get the score
``Σ q · entry`` over signs and parts, and ``topk`` chooses among them. One softmax runs over the keys of all bands and
of the chosen units. ``kernels.scores``, ``topk`` and ``gathered`` have a call for each of these parts; for one token
the calls take longer than the work.
"""

from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.decode.compiled import DecodeKernel, DecodeRows, Token
from longspan.kernels.decode.contract import BandRange, ChosenPositions, ScoreSpec
from longspan.kernels.decode.reference import DecodeReference
from longspan.rope import Rope

__all__ = [
    "BandRange",
    "ChosenPositions",
    "DecodeKernel",
    "DecodeReference",
    "DecodeRows",
    "ScoreSpec",
    "Token",
    "unsupported_reason",
]


def unsupported_reason(rope: Rope, *tensors: Tensor) -> str | None:
    """Why ``DecodeKernel`` cannot run on a layer's queries, keys and values of any shape, or None."""
    if rope.norm_q is not None or rope.norm_k is not None:
        return "the layer normalises queries or keys after rotation"
    return cpu.unsupported_reason(*tensors)
