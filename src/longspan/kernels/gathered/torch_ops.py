"""Gathered attention in torch's own operations: flash attention on a CPU, matrix products anywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.rope import Rope

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FEW = 8  # rows up to which every row gathers its own units; beyond, rows are gathered by unit
_BUDGET = 1 << 21  # turned queries held at once, in channels; few enough for a processor's cache


def why_no_flash(q: Tensor, softcap: float | None) -> str | None:
    """Why torch's flash attention for CPU cannot run here, or None."""
    if q.device.type != "cpu":
        return f"the tensors are on {q.device.type}"
    if q.dtype not in _DTYPES:
        return f"no {q.dtype}"
    return "torch's flash attention has no softcap" if softcap is not None else None


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
    flash: bool,
) -> tuple[Tensor, Tensor]:
    batch, heads, rows, _ = q.shape
    kv_heads, count = keys.shape[1], units.shape[-1]
    if units.shape[1] < kv_heads:
        units = units.expand(-1, kv_heads, -1, -1)
    run = _gather_rows if rows <= _FEW or rows * count <= keys.shape[2] // size else _group_rows
    run = _gather_tokens if size == 1 else run
    step = max(1, _BUDGET // max(count * q.shape[-1] * (heads // kv_heads if run is _group_rows else heads), 1))
    out = q.new_empty(batch, heads, rows, v.shape[-1])
    lse = torch.empty(batch, heads, rows, dtype=_wide(q), device=q.device)
    for r0 in range(0, rows, step):
        part = slice(r0, min(r0 + step, rows))
        out[:, :, part], lse[:, :, part] = run(
            q[:, :, part], keys, v, units[:, :, part], size, positions[..., part, :], table, rope, scale, softcap, flash
        )
    return out, lse


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
    flash: bool,
) -> tuple[Tensor, Tensor]:
    batch, heads, rows, _ = q.shape
    sharing, group = max(keys.shape[1], tokens.shape[1]), heads // max(keys.shape[1], tokens.shape[1])
    turned = rope.turn_q(q, *turn).unflatten(1, (sharing, group))
    tokens = tokens.to(keys.device)
    # One buffer for all heads: memory that is new is slower to write to than the copy itself.
    buffers = [x.new_empty(tokens.shape[2], x.shape[3]) for x in (keys, v)]
    out = q.new_empty(batch, sharing, group, rows, v.shape[-1])
    lse = torch.empty(batch, sharing, group, rows, dtype=_wide(q), device=q.device)
    for b in range(batch):
        for s in range(sharing):
            own = tokens[b, s * tokens.shape[1] // sharing]
            for x, buffer in zip((keys, v), buffers, strict=True):
                torch.index_select(x[b, s * x.shape[1] // sharing], 0, own, out=buffer)
            own_keys, own_v = (x[None, None].to(q.device) for x in buffers)
            if key_turn is not None:
                own_keys = rope.turn_k(own_keys, *key_turn)
            own_q = turned[b, s].reshape(1, 1, -1, q.shape[3])  # a group's heads as rows of its key head
            part, part_lse = _attend(own_q, own_keys, own_v, scale, softcap, flash)
            out[b, s], lse[b, s] = part.view(group, rows, -1), part_lse.view(group, rows)
    return out.flatten(1, 2), lse.flatten(1, 2)


def _gather_rows(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    units: Tensor,
    size: int,
    positions: Tensor,
    table: tuple[Tensor, Tensor],
    rope: Rope,
    scale: float,
    softcap: float | None,
    flash: bool,
) -> tuple[Tensor, Tensor]:
    """Each row's units are copied, and a head's (row, unit) pairs run as one batch."""
    batch, heads, rows, width = q.shape
    sharing, count = units.shape[1], units.shape[-1]
    group = heads // sharing
    turned = _turned(q, positions, table, rope).unflatten(1, (sharing, group))  # [B, S, G, T · m, D]
    units = units.to(keys.device)
    # One buffer for all heads: memory that is new is slower to write to than the copy itself.
    buffers = [x.new_empty(rows * count, size * x.shape[-1]) for x in (keys, v)]
    out = q.new_empty(batch, sharing, rows * count, group, v.shape[-1])
    lse = torch.empty(batch, sharing, rows * count, group, dtype=_wide(q), device=q.device)
    for b in range(batch):
        for s in range(sharing):
            head, own = s * keys.shape[1] // sharing, units[b, s].flatten()
            for x, buffer in zip((keys, v), buffers, strict=True):
                whole = x[b, head, : x.shape[2] // size * size].unflatten(0, (-1, size)).flatten(1)
                torch.index_select(whole, 0, own, out=buffer)
            own_keys, own_v = (x.view(-1, 1, size, x.shape[1] // size).to(q.device) for x in buffers)
            pairs = turned[b, s].transpose(0, 1)[:, None]  # [T · m, 1, G, D]
            part, part_lse = _attend(pairs, own_keys, own_v, scale, softcap, flash)
            out[b, s], lse[b, s] = part[:, 0], part_lse[:, 0]
    out = out.unflatten(2, (rows, count)).permute(0, 1, 4, 2, 3, 5).flatten(1, 2)  # [B, H, T, m, Dv]
    return _merged(out, lse.unflatten(2, (rows, count)).permute(0, 1, 4, 2, 3).flatten(1, 2))


def _gather_tokens(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    units: Tensor,
    size: int,
    positions: Tensor,
    table: tuple[Tensor, Tensor],
    rope: Rope,
    scale: float,
    softcap: float | None,
    flash: bool,
) -> tuple[Tensor, Tensor]:
    """Units of one token: a row's few keys are too few for flash attention, and too scattered to group rows by them."""
    batch, heads, rows, _ = q.shape
    sharing, count = units.shape[1], units.shape[-1]
    turned = _turned(q, positions, table, rope).unflatten(2, (rows, count)).unflatten(1, (sharing, -1)).to(_wide(q))
    units = units.to(keys.device)
    out = q.new_empty(batch, sharing, heads // sharing, rows, v.shape[-1])
    lse = torch.empty(batch, sharing, heads // sharing, rows, dtype=_wide(q), device=q.device)
    for b in range(batch):
        for s in range(sharing):
            head, own = s * keys.shape[1] // sharing, units[b, s].flatten()
            own_keys, own_v = (
                _units(x[b, head], own, 1).to(q.device, _wide(q)).view(rows, count, -1) for x in (keys, v)
            )
            scores = (turned[b, s] * own_keys).sum(dim=-1) * scale  # [G, T, m]
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[b, s] = (scores.softmax(dim=-1)[..., None] * own_v).sum(dim=-2)
            lse[b, s] = scores.logsumexp(dim=-1)
    return out.flatten(1, 2), lse.flatten(1, 2)


def _units(x: Tensor, units: Tensor, size: int) -> Tensor:
    """Units ``[n]`` of a head's tokens ``[N, D]``: ``[n, size, D]``."""
    whole = x[: x.shape[0] // size * size].unflatten(0, (-1, size))
    return whole.flatten(1).index_select(0, units).view(-1, size, x.shape[-1])


def _group_rows(
    q: Tensor,
    keys: Tensor,
    v: Tensor,
    units: Tensor,
    size: int,
    positions: Tensor,
    table: tuple[Tensor, Tensor],
    rope: Rope,
    scale: float,
    softcap: float | None,
    flash: bool,
) -> tuple[Tensor, Tensor]:
    """The rows that chose a unit are gathered, and the unit is read once for all of them, in place."""
    batch, heads, rows, width = q.shape
    sharing, count = units.shape[1], units.shape[-1]
    group = heads // sharing
    out = q.new_empty(batch, rows, heads, v.shape[-1])
    lse = torch.empty(batch, rows, heads, dtype=_wide(q), device=q.device)
    for b in range(batch):
        for s in range(sharing):
            mine, head = slice(s * group, (s + 1) * group), s * keys.shape[1] // sharing
            chosen = units[b, s].flatten()
            order = chosen.argsort(stable=True)
            at = positions if positions.dim() == 2 else positions[b, s * positions.shape[1] // sharing]
            cos, sin = (x.index_select(0, at.flatten()[order]) for x in table)
            # Rows of a group's heads lie side by side, so that they are copied in one go.
            own_q = q[b, mine].transpose(0, 1).reshape(rows, -1).index_select(0, order // count)
            sorted_q = rope.turn_q(own_q.view(1, -1, group, width).transpose(1, 2), cos, sin).transpose(1, 2)
            sorted_out = q.new_empty(rows * count, group * v.shape[-1])
            sorted_lse = torch.empty(rows * count, group, dtype=lse.dtype, device=q.device)
            ends = chosen.bincount().cumsum(0).tolist()
            for unit, (a, z) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                if a == z:
                    continue
                tokens = slice(unit * size, (unit + 1) * size)
                own_keys, own_v = (x[b : b + 1, head : head + 1, tokens].to(q.device) for x in (keys, v))
                own = sorted_q[:, a:z].reshape(1, 1, -1, width)
                part, part_lse = _attend(own, own_keys, own_v, scale, softcap, flash)
                sorted_out[a:z], sorted_lse[a:z] = part.reshape(z - a, -1), part_lse.view(z - a, group)
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            out[b, :, mine], lse[b, :, mine] = _merged_from(
                sorted_out.view(-1, v.shape[-1]), sorted_lse, back.view(rows, count)
            )
    return out.transpose(1, 2), lse.transpose(1, 2)


def _turned(q: Tensor, positions: Tensor, table: tuple[Tensor, Tensor], rope: Rope) -> Tensor:
    """Queries ``[B, H, T, D]`` turned for each of their units: ``[B, H, T · m, D]``."""
    batch, heads, rows, width = q.shape
    count = positions.shape[-1]
    spread = q.unsqueeze(3).expand(-1, -1, -1, count, -1).reshape(batch, heads, rows * count, width)
    if positions.dim() == 4:
        positions = positions.repeat_interleave(heads // positions.shape[1], dim=1)
    cos, sin = (x[positions.flatten(-2)] for x in table)
    return rope.turn_q(spread, cos, sin)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, flash: bool) -> tuple[Tensor, Tensor]:
    """Every row of ``q`` ``[B, H, R, D]`` to every key ``[B, H, K, D]``: output and log-sum-exp."""
    if flash:
        dk, dv = k.shape[-1], v.shape[-1]
        if dk != dv:  # the op wants equal head sizes; zero channels change neither scores nor values
            pad = torch.nn.functional.pad
            q, k, v = (pad(x, (0, max(dk, dv) - x.shape[-1])) for x in (q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=scale)
        return out[..., :dv], lse
    scores = (q @ k.mT).to(_wide(q)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.softmax(dim=-1).to(q.dtype) @ v, scores.logsumexp(dim=-1)


def _merged(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Parts ``[..., m, Dv]`` and ``[..., m]`` of one softmax as a whole."""
    total = lse.logsumexp(dim=-1)
    weights = (lse - total[..., None]).exp_()
    # Summed in the log-sum-exp's dtype, so that reduced dtypes do not round at every part.
    whole = out[..., 0, :] * weights[..., 0, None]
    for n in range(1, out.shape[-2]):
        whole.addcmul_(out[..., n, :].to(whole.dtype), weights[..., n, None])
    return whole.to(out.dtype), total


def _merged_from(out: Tensor, lse: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """The same, ``[T, G, Dv]`` and ``[T, G]``, with the parts of row ``t`` at rows ``back[t]`` of ``[T · m, G]``."""
    rows, count = back.shape
    group = lse.shape[1]
    own = lse.index_select(0, back.flatten()).view(rows, count, group).transpose(1, 2)  # [T, G, m]
    total = own.logsumexp(dim=-1)
    weights = (own - total[..., None]).exp_().flatten(0, 1)
    at = (back[:, None, :] * group + torch.arange(group, device=back.device)[:, None]).flatten(0, 1)
    if out.dtype == weights.dtype:
        # A weighted sum of rows is an embedding bag, which reads each part once and writes none.
        bag = torch.nn.functional.embedding_bag(at, out, mode="sum", per_sample_weights=weights)
        return bag.view(rows, group, -1), total
    parts = out.index_select(0, at.flatten()).view(rows, group, count, -1)
    return _merged(parts, own)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
