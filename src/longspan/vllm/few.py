"""Tokens of requests with few new ones, which read their keys in the pages; computed once in a step for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longspan.bands import Band
from longspan.kernels.gathered import PerQueryChunk
from longspan.rope import CosSin, Rope, Table, cos_sin
from longspan.vllm.pages import NewTokens, all_tokens


def indices(requests: Sequence[NewTokens]) -> Tensor:
    """``[P]`` int64, the new tokens' indices in their texts."""
    return torch.cat([torch.arange(one.past, one.past + one.count) for one in requests])


def rows_of(requests: Sequence[NewTokens], device: torch.device) -> slice | Tensor:
    """The new tokens' rows in the batch, ``[P]`` int64 or a slice; see ``as_slice``."""
    return as_slice(torch.cat([torch.arange(one.first, one.first + one.count) for one in requests]), device)


def as_slice(ascending: Tensor, device: torch.device) -> slice | Tensor:
    """Indices ``[P]`` int64, on ``device``; a slice, which copies nothing, where they follow one another."""
    first, last = int(ascending[0]), int(ascending[-1])
    return slice(first, last + 1) if last + 1 - first == len(ascending) else ascending.to(device)


@dataclass(frozen=True)
class _OfTable:
    """State of layers with one table of angles.

    Attributes:
        cos_sin: for each band cos and sin ``[P, r / 2]`` of the queries.
        derived: of their jobs.
    """

    cos_sin: tuple[CosSin, ...]
    derived: dict[str, Any] = field(default_factory=dict)


class Queries:
    """The tokens' queries: how they are rotated, whatever they read. Each is a query chunk of its own.

    Args:
        positions: for each band ``[P]`` int64, what the queries are rotated to.
        device: where the queries are.
    """

    def __init__(self, positions: Sequence[Tensor], device: torch.device) -> None:
        self._positions, self._device, self._of = positions, device, dict[Table, _OfTable]()
        self._edges = None if len(positions[0]) == 1 else tuple(range(len(positions[0]) + 1))

    def chunked(self, x: Tensor) -> Tensor:
        """``[1, S, P, n]`` as a job has it: without ``P`` where there is one query chunk."""
        return x[:, :, 0] if self._edges is None else x

    def job(
        self,
        q: Tensor,
        cache: Tensor,
        tokens: Tensor,
        ends: Tensor,
        rope: Rope,
        scale: float,
        softcap: float | None,
        *,
        shared: bool,
    ) -> PerQueryChunk:
        """Each query sees one run of keys a band.

        Args:
            q: ``[1, H, P, D]``, unrotated.
            tokens: ``chunked`` ``[1, S, P, M]`` int64, numbers of keys, band after band; see ``pages``.
            ends: ``chunked`` ``[1, S, P, bands]`` int64, one past the last of each band.
            shared: whether all layers have these same ``tokens`` and ``ends``, the same objects.
        """
        own = self._of.get(rope.table)
        if own is None:
            angles = tuple(cos_sin(rope.table, at, self._device) for at in self._positions)
            own = self._of[rope.table] = _OfTable(angles)
        keys, values = all_tokens(cache)
        return PerQueryChunk(
            q=q,
            keys=keys,
            v=values,
            rope=rope,
            scale=scale,
            softcap=softcap,
            tokens=tokens,
            ends=ends,
            cos_sin=own.cos_sin,
            edges=self._edges,
            derived=own.derived if shared else {},
        )


class FewTokens:
    """The tokens, each of which sees the keys of its bands.

    Args:
        bands: of the method.
        requests: theirs.
        page_step: how far apart pages lie; see ``pages``.
        size: tokens of a page.
        device: where the pages are.

    Attributes:
        rows: their rows in the batch.
    """

    def __init__(
        self, bands: Sequence[Band], requests: Sequence[NewTokens], page_step: int, size: int, device: torch.device
    ) -> None:
        i = indices(requests)
        low = torch.stack([band.keys.lo(i).clamp(min=0) for band in bands], dim=1)
        high = torch.stack([torch.minimum(band.keys.hi(i), i + 1) for band in bands], dim=1)
        ends = (high - low).clamp(min=0).cumsum(dim=1)
        tokens = numbers(requests, low, high, page_step, size)
        self.rows = rows_of(requests, device)
        self._queries = Queries([band.q_pos(i).clamp(min=0) for band in bands], device)
        self._tokens, self._ends = (self._queries.chunked(x[None, None].to(device)) for x in (tokens, ends))

    def job(self, q: Tensor, cache: Tensor, rope: Rope, scale: float, softcap: float | None) -> PerQueryChunk:
        """The job of the tokens' unrotated queries ``[1, H, P, D]`` on a layer's pages."""
        return self._queries.job(q, cache, self._tokens, self._ends, rope, scale, softcap, shared=True)


def numbers(requests: Sequence[NewTokens], low: Tensor, high: Tensor, page_step: int, size: int) -> Tensor:
    """``[P, M]``: for each new token the numbers of its keys ``low ≤ j < high``, ``[P, n]`` each, one after the other.

    Behind them stands the number of any token that there is.
    """
    intervals = [list(zip(*ends, strict=True)) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    found = torch.empty(len(low), int((high - low).clamp(min=0).sum(dim=1).max()), dtype=torch.int64)
    token = 0
    for one in requests:
        for _ in range(one.count):
            at = 0
            for first, stop in intervals[token]:
                if first < stop:
                    found[token, at : at + stop - first] = _run(one.pages, first, stop, page_step, size)
                    at += stop - first
            found[token, at:] = one.pages[0] * page_step
            token += 1
    return found


def _run(pages: Tensor, first: int, stop: int, page_step: int, size: int) -> Tensor:
    """The numbers of a text's tokens ``first : stop``."""
    from_page = first // size
    whole = pages[from_page : -(-stop // size), None] * page_step + torch.arange(size)
    return whole.flatten()[first - from_page * size : stop - from_page * size]
