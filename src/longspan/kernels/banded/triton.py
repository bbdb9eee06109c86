"""Banded attention on a GPU: one Triton kernel for all bands, and its keys cut into parts if queries are few."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels.banded.contract import BandAngles, Banded, Pages
from longspan.kernels.banded.plan import Plan
from longspan.kernels.gpu import launch as common
from longspan.kernels.gpu import tiles
from longspan.kernels.layout import empty_output, fp32_table, unit_stride
from longspan.kernels.once import once
from longspan.rope import CosSin, Rope

_MAPS = 4  # different rotations of the keys in one call
_BANDS = 31  # bands of which two bits each of an int64 can name the rotation


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The kernel's inputs besides queries.

    Attributes:
        keys: the different rotations ``[B, Hkv, N, D]``, one stride for all.
        maps: which of those each band reads, two bits each.
        values: ``[B, Hkv, N, Dv]``.
        ranges: ``[bands, 2, T]`` int32, or ``[B, bands, 2, T]`` of unlike rows: each query's keys ``lo ≤ j < hi``.
        pages: where unlike rows find their keys; None if those lie one after the other.
    """

    keys: list[Tensor]
    maps: int
    values: Tensor
    ranges: Tensor
    pages: Pages | None = None


def unsupported_reason(q: Tensor, keys: Sequence[Tensor], v: Tensor, scale: float) -> str | None:
    """Why this kernel cannot run on these inputs (shapes as for ``banded``), or None."""
    rotations = len({id(k) for k in keys})
    if rotations > _MAPS:
        return f"it supports keys in up to {_MAPS} rotations, not {rotations}"
    if rotations > 1 and len(keys) > _BANDS:
        return f"it supports up to {_BANDS} bands if keys are in several rotations, not {len(keys)}"
    return common.unsupported_scale(scale) or tiles.unsupported_reason(q, *keys, v)


def run(job: Banded) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, T, Dv]`` in q's dtype and log-sum-exp ``[B, H, T]`` in fp32."""
    q, plan, rope = job.q, job.plan, job.rope
    laid_out = _laid_out(job.keys, job.v, plan, q.device, job.pages)
    if rope.norm_q is None:
        angles = _angles(plan, job.cos_sin)
    else:  # a module of the model's own; the kernel takes what comes out of it
        q, angles = torch.stack([rope.rotate_q(q, cos, sin) for cos, sin in job.cos_sin]), None
    return launch(q, laid_out, angles, rope, scale=job.scale, softcap=job.softcap, first=plan.start, reach=plan.reach)


def launch(
    q: Tensor,
    laid_out: LaidOut,
    angles: CosSin | None,
    rope: Rope,
    *,
    scale: float,
    softcap: float | None,
    first: int,
    reach: int,
) -> tuple[Tensor, Tensor]:
    """Run the kernel on tensors as it takes them; nothing here waits for the device or looks into its memory.

    Args:
        q: ``[B, H, T, D]``, or without angles ``[bands, B, H, T, D]``, rotated already.
        angles: cos, sin ``[bands, T, r / 2]``, or ``[bands, B, T, r / 2]`` of unlike rows, in fp32.
        first: the first query's own index, by which tiles are laid.
        reach: the most keys that a row sees.
    """
    from longspan.kernels.banded import triton_jit

    ranges, values, distinct, pages = laid_out.ranges, laid_out.values, laid_out.keys, laid_out.pages
    bands, unlike = ranges.shape[-3], ranges.dim() == 4
    q = unit_stride(q)
    q = q if angles is None else q[None].expand(bands, *q.shape)
    cos, sin = (q, q) if angles is None else angles
    batch, heads, rows, dk = q.shape[1:]
    kv_heads, dv = values.shape[1], values.shape[-1]
    out, lse = empty_output(q[0], values)
    if out.numel() == 0:
        return out, lse
    group = heads // kv_heads

    tile = tiles.choose(q, tiles.power(dk), tiles.power(dv), rows * group)
    tile_heads = min(group, tile.rows)
    tokens = tile.rows // tile_heads
    shift = first % tokens if rows > 1 else 0
    count = -(-(rows + shift) // tokens)
    columns = kv_heads * -(-group // tile_heads)
    parts = tiles.splits(count * columns * batch, -(-reach // tile.keys), q.device)

    whole, whole_lse = common.room(out, lse, parts)
    table, page, step = (ranges, 0, 0) if pages is None else (pages.table, pages.size, pages.step)
    four = distinct + [distinct[0]] * (_MAPS - len(distinct))
    with tiles.on(q.device):
        triton_jit.banded[(count * parts, columns, batch)](
            q, *four, values, cos, sin, ranges, table, whole, whole_lse,
            *q.stride()[1:4], q.stride(0), *four[0].stride()[:3], *values.stride()[:3], *whole.stride()[:3],
            table.stride(0), step, rows, shift, laid_out.maps, bands, batch if unlike else 1, parts, float(scale),
            MAPS=len(distinct), SPLIT=parts > 1, HALF=0 if angles is None else cos.shape[-1], PAGE=page,
            **common.constants(dk, dv, rope, softcap, tile, group),
        )  # fmt: skip
        common.merge(whole, whole_lse, out, lse)
    return out, lse


def _angles(plan: Plan, cos_sin: Sequence[CosSin]) -> CosSin:
    """All layers of a call share the angles, so they are laid side by side once."""
    if isinstance(cos_sin, BandAngles):
        return fp32_table((cos_sin.cos, cos_sin.sin))

    def derive() -> CosSin:
        cos, sin = (torch.stack([one[n].float() for one in cos_sin]) for n in (0, 1))
        return cos, sin

    sources = [x for one in cos_sin for x in one]
    return once(plan.derived, ("cos_sin", *map(id, sources)), derive, *sources)


def _laid_out(keys: Sequence[Tensor], v: Tensor, plan: Plan, device: torch.device, pages: Pages | None) -> LaidOut:
    distinct = list({id(k): k for k in keys}.values())
    maps = which([id(k) for k in keys])
    if not tiles.offloaded(v):
        distinct, values = [unit_stride(k) for k in distinct], unit_stride(v)
        if any(k.stride() != distinct[0].stride() for k in distinct):
            distinct = [k.contiguous() for k in distinct]
        return LaidOut(distinct, maps, values, plan.ranges(device), pages)
    # Kept apart from the device: keys that any band sees are brought, range by range, and laid side by side.
    spans, moved = _brought(plan)
    packed = [torch.cat([x[:, :, a:z] for a, z in spans], dim=2) for x in (*distinct, v)]
    return LaidOut(packed[:-1], maps, packed[-1], _ranges(plan, moved, device))


def which(keys: Sequence[Hashable]) -> int:
    """Each band's keys, two bits each: their number among the different ones, by first band."""
    order = list(dict.fromkeys(keys))
    return sum(order.index(k) << (2 * band) for band, k in enumerate(keys))  # 0 if there is but one


def _brought(plan: Plan) -> tuple[list[tuple[int, int]], list[int]]:
    """The ranges of keys that any band sees, in order and apart, and by how much each band's indices move."""
    limits = [(int(lo[lo < hi].min()), int(hi[lo < hi].max())) for lo, hi in zip(plan.lo, plan.hi, strict=True)]
    spans: list[tuple[int, int]] = []
    for a, z in sorted(limits):
        if spans and a <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(z, spans[-1][1])
        else:
            spans.append((a, z))
    moved = []
    for a, _ in limits:
        n = max(n for n, span in enumerate(spans) if span[0] <= a)
        moved.append(sum(z - a for a, z in spans[:n]) - spans[n][0])
    return spans, moved


def _ranges(plan: Plan, moved: Sequence[int], device: torch.device) -> Tensor:
    def derive() -> Tensor:
        pairs = [torch.stack((lo, hi), dim=-2) + n for lo, hi, n in zip(plan.lo, plan.hi, moved, strict=True)]
        return torch.stack(pairs, dim=-3).int().to(device)

    return once(plan.derived, ("ranges", tuple(moved), device), derive)
