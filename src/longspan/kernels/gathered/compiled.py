"""Gathered attention in C: chosen keys and values are read where they lie."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from longspan.kernels import native
from longspan.kernels.gathered.contract import PerPiece, PerRow
from longspan.kernels.native import calls
from longspan.kernels.native.structs import ALL
from longspan.rope import Turn

_UNITS, _TOKENS = ALL["Units"], ALL["Tokens"]

_SHORT = 16  # units of fewer tokens are too short for rows to be gathered by them
_HELD = 4096  # rows whose sums are kept while they see all of their units


def why_not(job: PerRow | PerPiece) -> str | None:
    """Why this kernel cannot run the job, or None."""
    if job.rope.norm_q is not None:
        return "the model normalises queries after they are turned"
    return native.why_not(job.q, job.keys, job.v)


def run(job: PerRow | PerPiece) -> tuple[Tensor, Tensor]:
    out, lse = calls.room(job.q, job.v)
    _run(job, out, lse, more=False)
    return out, lse


def run_into(out: Tensor, lse: Tensor, job: PerRow | PerPiece) -> None:
    """The same with ``out`` and ``lse`` as a part of the softmax, of which they become the whole."""
    _run(job, out, lse, more=True)


def _run(job: PerRow | PerPiece, out: Tensor, lse: Tensor, more: bool) -> None:
    if isinstance(job, PerRow):
        _by_row(job, out, lse, more)
    else:
        _by_piece(job, out, lse, more)


def _by_row(job: PerRow, out: Tensor, lse: Tensor, more: bool) -> None:
    units, at, count = job.units, job.positions, job.units.shape[-1]
    if job.size < 1:
        raise ValueError(f"a unit has {job.size} tokens")
    q, keys, v = (calls.side_by_side(x) for x in (job.q, job.keys, job.v))
    sharing = max(v.shape[1], units.shape[1])
    units, at, table = _each(units.long().contiguous(), sharing), at.long().contiguous(), calls.plain(job.table)
    at = at.expand(*units.shape[:2], -1, -1) if at.dim() == 2 else _each(at, sharing)
    items, rows, available = q.shape[0] * sharing, q.shape[2], keys.shape[2] // job.size
    tokens = max(1, min(rows, _HELD // native.group_of(q.shape[1], sharing)))
    calls.expect("units", units, q.shape[0], sharing, rows, count, dtype=torch.int64)
    calls.expect("positions", at, q.shape[0], sharing, rows, count, dtype=torch.int64)
    given = _UNITS.pack(
        job=calls.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, more),
        keys=calls.keys(keys, q, v),
        table=calls.table(table, job.rope),
        units=units.data_ptr(),
        positions=at.data_ptr(),
        unit_step=units.stride()[:3],
        position_step=at.stride()[:3],
        count=count,
        size=job.size,
        available=available,
        tokens=tokens,
        batch=q.shape[0],
    )
    if job.size < _SHORT or rows <= native.FEW or rows * count <= available:
        native.run("units", items, given, items * rows * count * job.size * calls.token(q, v))
    else:
        native.run("units_many", items * -(-rows // tokens), given)


def _by_piece(job: PerPiece, out: Tensor, lse: Tensor, more: bool) -> None:
    if job.key_turn is not None:
        job = _turned(job, job.key_turn)
    q, keys, v = (calls.side_by_side(x) for x in (job.q, job.keys, job.v))
    sharing = max(v.shape[1], job.tokens.shape[1])
    tokens = job.tokens.long().contiguous()
    ends = job.ends if job.ends is not None else torch.full((1, 1, 1), tokens.shape[2], device="cpu")
    ends = ends.long().contiguous().expand(tokens.shape[0], sharing, -1)
    tokens = _each(tokens, sharing)
    turns = [calls.plain(turn) for turn in job.turns]
    items, each = q.shape[0] * sharing, native.tile_tokens(q.shape[1], sharing)
    calls.expect("tokens", tokens, q.shape[0], sharing, None, dtype=torch.int64)
    calls.expect("ends", ends, q.shape[0], sharing, len(turns), dtype=torch.int64)
    own = _TOKENS.pack(
        job=calls.job(q, v, out, lse, job.rope, job.scale, job.softcap, sharing, more),
        keys=calls.keys(keys, q, v),
        tokens=tokens.data_ptr(),
        ends=ends.data_ptr(),
        token_step=tokens.stride()[:3],
        end_step=ends.stride()[:3],
        runs=len(turns),
        each=each,
        count=tokens.shape[2],
        batch=q.shape[0],
    )
    given = b"".join((own, *(calls.table(turn, job.rope) for turn in turns)))
    if q.shape[2] <= native.FEW:
        native.run("tokens", items, given, items * q.shape[2] * tokens.shape[2] * calls.token(q, v))
    else:
        native.run("tokens_many", items * -(-q.shape[2] // each), given)


def _turned(job: PerPiece, turn: Turn) -> PerPiece:
    """The same with its tokens brought together and turned, since no turn of a query stands for all of theirs."""
    sharing = max(job.v.shape[1], job.tokens.shape[1])
    tokens = _each(job.tokens, sharing)[..., None]
    copies = sharing // job.v.shape[1]
    stored = (x if copies == 1 else x.repeat_interleave(copies, dim=1) for x in (job.keys, job.v))
    keys, v = (torch.take_along_dim(x, tokens, dim=2) for x in stored)
    order = torch.arange(tokens.shape[2], device="cpu").expand(tokens.shape[0], 1, -1)
    return replace(job, keys=job.rope.turn_k(keys, *turn), v=v, tokens=order, key_turn=None)


def _each(x: Tensor, sharing: int) -> Tensor:
    """``x`` for all that share; what is the same for all of them has a step of zero."""
    return x if x.shape[1] == sharing else x.expand(-1, sharing, *[-1] * (x.dim() - 2))
