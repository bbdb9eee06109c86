"""Pieces in C."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.native import calls
from longspan.kernels.native.structs import ALL
from longspan.kernels.pieces.contract import Pieces

_PIECES = ALL["Pieces"]

_ROWS, _FEWEST = 96, 8  # queries whose scores are held together
_SCORES = 2**24  # of them, for a thread (64 MB)


def run_into(out: Tensor, lse: Tensor, pieces: Pieces) -> None:
    """Merge what the pieces see into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place."""
    job, asked, scored = pieces.job, pieces.asked.float().contiguous(), pieces.scored
    q, keys, v = (calls.side_by_side(x) for x in (job.q, job.keys, job.v))
    sharing = max(v.shape[1], native.group_of(asked.shape[1], pieces.together))
    turn = calls.plain(job.turns[0])
    edges, stops = (torch.tensor(x, device="cpu") for x in (pieces.edges, pieces.stops))
    tile = min(_ROWS, max(_FEWEST, _SCORES // max(1, *pieces.stops)))
    calls.expect("edges", edges, len(stops) + 1, dtype=torch.int64)
    calls.expect("asked", asked, q.shape[0], None, q.shape[2], None, None)
    given = _PIECES.pack(
        job=calls.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, True),
        keys=calls.keys(keys, q, v),
        table=calls.table(turn, job.rope),
        worth=calls.worth(asked, scored, None, pieces.together, tile),
        edges=edges.data_ptr(),
        stops=stops.data_ptr(),
        pieces=len(stops),
        first=pieces.first,
        count=job.tokens.shape[2],
        near=pieces.near,
        each=native.tile_tokens(q.shape[1], sharing),
    )
    native.run("pieces", asked.shape[0] * len(stops), given)
