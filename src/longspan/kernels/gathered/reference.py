"""The contract of gathered attention, dense and in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.rope import Rope


def by_row(
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
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    heads, count = q.shape[1], units.shape[-1]
    keys, v = (x.double().repeat_interleave(heads // x.shape[1], dim=1) for x in (keys, v))
    units = units.repeat_interleave(heads // units.shape[1], dim=1)
    j = torch.arange(v.shape[2], device=q.device)
    parts = []
    for n in range(count):
        at = (
            positions[..., n]
            if positions.dim() == 2
            else positions[..., n].repeat_interleave(heads // positions.shape[1], dim=1)
        )
        cos, sin = (x[at] for x in table)
        scores = rope.turn_q(q.double(), cos, sin) @ keys.mT * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        parts.append(scores.masked_fill(j // size != units[..., n, None], float("-inf")))
    scores = torch.cat(parts, dim=-1)
    out = scores.softmax(dim=-1) @ torch.cat([v] * count, dim=2)
    return out.to(q.dtype), scores.logsumexp(dim=-1)


def by_piece(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    tokens: Tensor,
    turn: tuple[Tensor, Tensor],
    rope: Rope,
    *,
    key_turn: tuple[Tensor, Tensor] | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    heads = q.shape[1]
    keys, v = (x.double().repeat_interleave(heads // x.shape[1], dim=1) for x in (keys, v))
    tokens = tokens.repeat_interleave(heads // tokens.shape[1], dim=1)[..., None]
    keys, v = (torch.take_along_dim(x, tokens, dim=2) for x in (keys, v))
    if key_turn is not None:
        keys = rope.turn_k(keys, *key_turn)
    scores = rope.turn_q(q.double(), *turn) @ keys.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores.softmax(dim=-1) @ v).to(q.dtype), scores.logsumexp(dim=-1)
