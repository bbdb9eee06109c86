"""Pieces in C."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.kernels import cpu
from longspan.kernels.cpu import packing
from longspan.kernels.cpu.structs import ALL
from longspan.kernels.query_chunks.contract import Pieces

_PIECES = ALL["QueryChunks"]

_ROWS, _FEWEST = 96, 8  # queries whose scores are held together
_SCORES = 2**24  # of them, for a thread (64 MB)


def run_into(out: Tensor, lse: Tensor, pieces: Pieces) -> None:
    """Merge what the pieces see into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place."""
    job, asked, scored = pieces.job, pieces.asked.float().contiguous(), pieces.scored
    q, keys, v = (packing.unit_stride(x) for x in (job.q, job.keys, job.v))
    sharing = max(v.shape[1], cpu.group_size(asked.shape[1], pieces.together))
    turn = packing.fp32_table(job.cos_sin[0])
    edges, stops = (torch.tensor(x, device="cpu") for x in (pieces.edges, pieces.stops))
    tile = min(_ROWS, max(_FEWEST, _SCORES // max(1, *pieces.stops)))
    packing.expect("edges", edges, len(stops) + 1, dtype=torch.int64)
    packing.expect("asked", asked, q.shape[0], None, q.shape[2], None, None)
    given = _PIECES.pack(
        job=packing.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, True),
        keys=packing.keys(keys, q, v),
        table=packing.table(turn, job.rope),
        scoring=packing.token_scores(asked, scored, None, pieces.together, tile),
        edges=edges.data_ptr(),
        stops=stops.data_ptr(),
        chunks=len(stops),
        first=pieces.first,
        count=job.tokens.shape[2],
        near=pieces.near,
        each=cpu.tile_tokens(q.shape[1], sharing),
    )
    cpu.run("query_chunks", asked.shape[0] * len(stops), given)
