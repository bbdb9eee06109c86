"""Pieces in C."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.native import calls
from longspan.kernels.pieces.contract import Pieces

_ROWS, _FEWEST = 96, 8  # queries whose scores are held together
_SCORES = 2**24  # of them, for a thread (64 MB)


def run_into(out: Tensor, lse: Tensor, pieces: Pieces) -> None:
    """Merge what the pieces see into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place."""
    job, asked, scored = pieces.job, pieces.asked.float().contiguous(), pieces.scored
    q, keys, v = (calls.side_by_side(x) for x in (job.q, job.keys, job.v))
    batch, heads, rows, parts, width = asked.shape
    choosing, count = heads // pieces.together, job.tokens.shape[2]
    sharing = max(v.shape[1], choosing)
    turn = calls.plain(job.turns[0])
    edges, stops = (torch.tensor(x, device="cpu") for x in (pieces.edges, pieces.stops))
    own = calls.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, True)
    tile = min(_ROWS, max(_FEWEST, _SCORES // max(pieces.stops)))
    worth = calls.numbers(
        *(asked.data_ptr(), scored.data_ptr(), 0, *scored.stride()[:3], choosing, pieces.together, rows, parts, width),
        *(scored.shape[1], scored.shape[2], tile, native.KINDS[scored.dtype]),
    )
    each = native.tile_tokens(q.shape[1] // sharing)
    rest = struct.pack("=2Q5q", edges.data_ptr(), stops.data_ptr(), len(stops), pieces.first, count, pieces.near, each)
    native.run("pieces", batch * len(stops), own + calls.keys([keys]) + calls.tables([turn]) + worth + rest)
