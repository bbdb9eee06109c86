"""Keys and values in another memory than the queries, or in int8: the chosen ones are copied to the queries' memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.gathered.contract import PerQueryChunk, PerRow
from longspan.kernels.gpu import tiles

# Anything but a tensor stands for ``[B, Hkv, N, D]`` in int8; its ``chosen`` dequantises tokens of a head.

CHANNELS_AT_ONCE = 1 << 28  # of the keys that are copied for some rows (bf16: 512 MB, and as much of values)


def here(job: PerRow | PerQueryChunk) -> bool:
    """Whether a kernel can read keys and values where they lie."""
    return not tiles.offloaded(job.keys) and job.keys.device == job.q.device


def brought_chunk(chunk: PerQueryChunk) -> PerQueryChunk:
    """The job of one chunk over its tokens alone, on the device of the queries.

    Heads that choose for themselves get keys of their own.
    """
    tokens = chunk.tokens.to(chunk.keys.device)
    heads = max(chunk.keys.shape[1], tokens.shape[1])
    own = tokens.repeat_interleave(heads // tokens.shape[1], dim=1)
    keys, v = (_tokens(x, own).to(chunk.q.device) for x in (chunk.keys, chunk.v))
    places = torch.arange(tokens.shape[2], device=chunk.q.device).expand(tokens.shape)
    return replace(chunk, keys=keys, v=v, tokens=places, derived={})


def _tokens(x: Any, tokens: Tensor) -> Tensor:
    """``[B, S, M, D]`` of ``x`` ``[B, Hkv, N, D]`` at tokens ``[B, S, M]``, where S is a multiple of Hkv."""
    batch, heads, count = tokens.shape
    out: Tensor = x.new_empty(batch, heads, count, x.shape[3])
    for b, head in product(range(batch), range(heads)):
        own = head * x.shape[1] // heads
        if tiles.offloaded(x):
            out[b, head] = x.chosen(b, own, tokens[b, head])
        else:
            torch.index_select(x[b, own], 0, tokens[b, head], out=out[b, head])
    return out


def brought(job: PerRow, most: int = CHANNELS_AT_ONCE) -> Iterator[tuple[slice, PerRow]]:
    """Some rows of a job at a time, over the units that they chose, on the device of the queries.

    A unit is copied once for all rows that chose it. Neighbouring rows choose much alike, so as many come together as
    choose units of no more than ``most`` channels of keys; one row at least.
    """
    rows = job.q.shape[2]
    sets = min(job.units.shape[1], job.keys.shape[1])  # of key heads whose units are chosen alike
    chosen = job.units.to(job.keys.device).unflatten(1, (sets, -1))  # [B, C, S / C, T, m]
    unit_channels = job.keys.shape[1] * job.size * job.keys.shape[3] * job.keys.shape[0]
    r0 = 0
    while r0 < rows:
        r1 = rows
        while True:
            own = chosen[:, :, :, r0:r1].flatten(0, 1)
            units, numbers = zip(*(one.unique(return_inverse=True) for one in own), strict=True)
            count = max(map(len, units))
            if count * unit_channels <= most or r1 - r0 == 1:
                break
            r1 = r0 + (r1 - r0 + 1) // 2
        numbered = torch.stack(numbers).unflatten(0, (-1, sets)).flatten(1, 2)
        keys, v = (_copied(x, units, sets, count, job.size).to(job.q.device) for x in (job.keys, job.v))
        part = job.part(slice(r0, r1))
        yield slice(r0, r1), replace(part, keys=keys, v=v, units=numbered.to(job.q.device))
        r0 = r1


def _copied(x: Any, units: tuple[Tensor, ...], sets: int, count: int, size: int) -> Tensor:
    """``[B, Hkv, count · size, D]``, the units of each batch row and set of key heads, and zeros after the last one."""
    batch, heads, stored, width = x.shape
    out: Tensor = x.new_empty(batch, heads, count * size, width)
    for b, head in product(range(batch), range(heads)):
        own = units[b * sets + head * sets // heads]
        place = out[b, head].view(count, -1)
        if tiles.offloaded(x):
            tokens = own[:, None] * size + torch.arange(size, device=own.device)
            place[: len(own)] = x.chosen(b, head, tokens.flatten()).view(len(own), -1)
        else:
            whole = x[b, head, : stored // size * size].unflatten(0, (-1, size)).flatten(1)
            torch.index_select(whole, 0, own, out=place[: len(own)])
        place[len(own) :] = 0
    return out
