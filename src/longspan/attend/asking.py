"""What LongHeads and ESA choose a token's keys by, as the kernel for one token takes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.index import ChunkIndex, TokenIndex
from longspan.kernels.native import LANES
from longspan.kernels.token import Asking, Places
from longspan.methods.esa import ESA
from longspan.methods.longheads import LongHeads
from longspan.methods.selecting import Selecting
from longspan.rope import Table
from longspan.selection.chunks import Chunks
from longspan.selection.tokens import Tokens


def all_in_c(method: Selecting) -> bool:
    """Whether the kernel has the parts of a method: its scores, its choice and its positions."""
    if type(method) not in (LongHeads, ESA):  # what derives from them may do anything
        return False
    if isinstance(method, LongHeads):
        scored = method.score in ("representation", "mean", "bounds") and method.pick == "best"
        return scored and not method.fix_layers and method.remap != "dca"
    if isinstance(method, ESA):
        return method.remap == "far" and not method.score_at and (method.combine == "sum" or method.share == "head")
    return False


def scores_in_c(selection: Any, index: Any, table: Table) -> bool:
    """The same of what a layer holds."""
    if isinstance(selection, Chunks):
        return index is not None
    # Stored keys have the factor of the angles, and scores have not.
    return table.factor == 1.0 if index is None else index.theta_k.shape[0] % LANES == 0


def asking(
    selection: Any,
    index: Any,
    keys: Tensor | None,
    heads: int,
    kv_heads: int,
    rows: slice,
    padding: int,
    places: Places,
) -> Asking:
    """Scores and choice of some rows of one layer.

    Args:
        keys: ``[B, Hkv, N, D]``, those that are scored where there is no index.
        rows: which rows of the index they are.
        padding: tokens that these begin with in an index of tokens and are none of their own.
    """
    sums, choosing = selection.share != "head", {"head": heads, "group": kv_heads, "layer": 1}[selection.share]
    if isinstance(selection, Chunks):
        assert isinstance(index, ChunkIndex)
        by_head = index.kind == "representation"  # those of heads that choose together lie side by side
        return Asking(
            entries=index.entries[rows],
            signs=2 if index.kind == "bounds" else 1,
            sums=sums and not by_head,
            choosing=choosing,
            parts=1 if by_head or selection.share != "layer" else kv_heads,
            first=int(selection.first),
            count=selection.chosen,
            tie=selection.tie(torch.float32),
            last=True,
            size=selection.size,
            places=places,
        )
    assert isinstance(selection, Tokens)
    thetas = None
    if isinstance(index, TokenIndex):
        keys, thetas = index.entries[rows, :, padding:], (index.theta_q, index.theta_k)
    assert keys is not None
    return Asking(
        entries=keys,
        sums=sums,
        rounds=True,
        choosing=choosing,
        parts=kv_heads if thetas is None and selection.share == "layer" else 1,
        thetas=thetas,
        first=selection.initial,
        count=selection.top_k,
        near=selection.proximity,
        size=1,
        places=places,
    )
