"""Attention to gathered keys: units (chunks, blocks or single tokens) that queries chose.

Contract. For query row ``t`` of a head and its ``m`` units, the score of a key ``j`` in unit ``n`` is
``scale · turn_q(q_t, position(t, n)) · keys[j]``; ``softcap`` bounds it; one softmax runs over the keys of all units;
the output is the weighted sum of their values. The log-sum-exp goes with it, so that the result can be merged with that
of other keys.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from longspan.kernels.gathered import reference, torch_ops
from longspan.rope import Rope

Impl = Literal["auto", "flash_cpu", "tiled", "reference"]

__all__ = ["gathered_by_piece", "gathered_by_row"]


def gathered_by_row(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    units: Tensor,
    size: int,
    positions: Tensor,
    table: tuple[Tensor, Tensor],
    rope: Rope,
    *,
    scale: float,
    softcap: float | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Every query has units of its own.

    Args:
        q: ``[B, H, T, D]``, unrotated.
        keys, v: ``[B, Hkv, N, D]`` and ``[B, Hkv, N, Dv]``; unit ``n`` is tokens ``n · size : (n + 1) · size``.
        units: ``[B, S, T, m]`` int64, S = 1, Hkv or H: for the layer, each key head's group or each query head.
        size: tokens of a unit.
        positions: ``[T, m]``, or ``[B, S, T, m]``, int64: the query's position for each of its units.
        table: cos, sin ``[P, r / 2]`` by position.
        rope: how cos and sin turn a query.
        impl: ``"auto"`` takes torch's flash attention for CPU tensors without a softcap, matrix products otherwise.

    Returns:
        ``[B, H, T, Dv]`` in q's dtype, and the log-sum-exp ``[B, H, T]`` in fp32 (fp64 for fp64).
    """
    if impl == "reference":
        return reference.by_row(q, keys, v, units, size, positions, table, rope, scale=scale, softcap=softcap)
    return torch_ops.by_row(
        q, keys, v, units, size, positions, table, rope, scale=scale, softcap=softcap, flash=_flash(impl, q, v, softcap)
    )


def gathered_by_piece(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    tokens: Tensor,
    turn: tuple[Tensor, Tensor],
    rope: Rope,
    *,
    key_turn: tuple[Tensor, Tensor] | None = None,
    scale: float,
    softcap: float | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """All queries have the same tokens.

    Args:
        q: ``[B, H, T, D]``, unrotated.
        keys, v: ``[B, Hkv, N, D]`` and ``[B, Hkv, N, Dv]``.
        tokens: ``[B, S, M]`` int64, S = 1, Hkv or H.
        turn: cos, sin ``[T, r / 2]`` of the queries' positions.
        key_turn: cos, sin ``[M, r / 2]`` that the gathered keys are turned by, or None if they stay as stored.

    Returns:
        As ``gathered_by_row``.
    """
    if impl == "reference":
        return reference.by_piece(q, keys, v, tokens, turn, rope, key_turn=key_turn, scale=scale, softcap=softcap)
    return torch_ops.by_piece(
        q, keys, v, tokens, turn, rope, key_turn=key_turn, scale=scale, softcap=softcap,
        flash=_flash(impl, q, v, softcap),
    )  # fmt: skip


def _flash(impl: Impl, q: Tensor, v: Tensor, softcap: float | None) -> bool:
    if impl not in get_args(Impl):
        raise ValueError(f"impl is one of {', '.join(get_args(Impl))}, not {impl!r}")
    reason = torch_ops.why_no_flash(q, softcap)
    if impl == "flash_cpu" and reason is not None:
        raise ValueError(f"flash_cpu cannot run here: {reason}; use impl='tiled'")
    return impl != "tiled" and reason is None
