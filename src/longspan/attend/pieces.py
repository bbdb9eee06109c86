"""ESA's pieces in prefill, many of them in one call of C where C has all that they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attend.rows import Choices, Rows
from longspan.kernels import native
from longspan.kernels.pieces import Pieces, run_into, why_not
from longspan.positions.selected import FarNear
from longspan.selection.tokens import Tokens

if TYPE_CHECKING:
    from longspan.attend.choosing import Chooser

_ROWS = 4096  # queries that are run in one call, whose form for scores is held at once


def add_pieces(
    chooser: Chooser,
    out: Tensor,
    lse: Tensor,
    rows: Rows,
    runs: list[tuple[int, int]],
    index: Any,
    shared: Choices,
) -> int:
    """Merge what the pieces ``runs`` chose into ``out`` and ``lse``, as ``Chooser.add`` does.

    Returns:
        How many of them that was, the first ones: none where they have to go one by one, and not the last ones where
        they are too few to be spread over all threads.
    """
    selection, done = chooser.selection, 0
    if not isinstance(selection, Tokens) or not isinstance(chooser.positions, FarNear):
        return 0
    plain = out.dtype == rows.q.dtype and out.stride(-1) == 1 and lse.dtype == torch.float32
    if chooser.observer is not None or chooser.impl not in ("auto", "compiled") or not plain:
        return 0
    if native.why_not(rows.q, rows.keys, rows.values) is not None:
        return 0
    at_once = _ROWS // selection.piece
    sharing = {"head": rows.q.shape[1], "group": rows.keys.shape[1], "layer": 1}[selection.share]
    nothing = torch.empty(rows.q.shape[0], sharing, selection.top_k, dtype=torch.int64, device="cpu")
    while len(runs) - done >= min(at_once, 2 * torch.get_num_threads()) > 1:
        own = runs[done : done + at_once]
        r0, r1 = own[0][0], own[-1][1]
        asked, scored, together = chooser.asked(rows, r0, r1, index, shared)
        job = chooser.seen_by_piece(rows, r0, r1, nothing, shared)
        if why_not(job, asked, scored, together) is not None:
            return done
        pieces = Pieces(
            job=job,
            asked=asked,
            scored=scored,
            together=together,
            edges=[*(a - r0 for a, _ in own), r1 - r0],
            first=selection.initial,
            stops=[selection.candidates(a)[1] for a, _ in own],
            near=selection.proximity,
        )
        part = rows.part(r0, r1)
        run_into(out[:, :, part], lse[:, :, part], pieces)
        done += len(own)
    return done
