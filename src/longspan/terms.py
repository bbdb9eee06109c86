"""The values of parameters that several modules share; this module does not import torch."""

from typing import Literal

ChunkScore = Literal["representation", "mean", "submeans", "bounds", "token_max"]
Share = Literal["head", "group", "layer"]
Dense = Literal["window", "kept"] | int


def head_sets(share: Share, heads: int, kv_heads: int) -> int:
    """``S``: how many sets of heads choose in a row, of ``heads`` query heads and ``kv_heads`` key heads."""
    return {"head": heads, "group": kv_heads, "layer": 1}[share]
