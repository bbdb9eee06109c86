"""Chunks that queries choose by the bounds in the pages, and the keys that each query and key head then reads there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from longspan.attend.tables import Tables
from longspan.choosing.chunks import Chunks
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import Chosen, Selector
from longspan.kernels.gathered import Impl, PerQueryChunk, gather_into
from longspan.paged.bounds import bounds, last_pages
from longspan.paged.pages import all_tokens, as_slice, page_step
from longspan.rope import CosSin, Rope, Table, cos_sin

BOUNDS_AT_ONCE = 1 << 14  # chunks whose bounds are copied at once (8 key heads of 128 channels in fp32: 128 MB)


class PagedSelector(Selector):
    """Chooses for one request with many new tokens.

    Args:
        selection: of the method.
        low, high: ``[1, Hkv, n, D]``, the bounds of the request's chunks.
    """

    def __init__(self, selection: Chunks, low: Tensor, high: Tensor) -> None:
        self.selection, self._low, self._high = selection, low, high

    def columns(self, stop: int) -> int:
        return self.selection.candidates(stop)

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        own = slice(0, self.selection.candidates(r1))
        scores = self.selection.bound_scores(queries.between(r0, r1), self._low[:, :, own], self._high[:, :, own])
        return Chosen(self.selection.choose(scores, torch.arange(r0, r1)), lambda: scores)


def request_bounds(selection: Chunks, cache: Tensor, table: Tensor, stop: int) -> tuple[Tensor, Tensor]:
    """The bounds ``[1, Hkv, n, D]`` of the chunks that a request's queries before ``stop`` choose from.

    Args:
        table: ``[n]``, the request's pages.
    """
    own = last_pages(table, selection.candidates(stop), selection.size, cache.shape[2])
    return bounds(cache, own.to(cache.device)[None])


@dataclass(frozen=True, eq=False)
class _Group:
    """``P`` queries that choose at once.

    Attributes:
        at: where they are among those of ``Choices``.
        i: ``[P]`` int64 on the CPU, their indices in their texts.
        pages: ``[P, n, l / size]`` int32, the pages of each chunk; the last ones hold the bounds.
        high: ``[P, 1, bands]`` int64, one past the last key of each band.
        row: ``[P, 1]`` int64, 0 to ``P - 1``.
        angles: of each table, and for each band cos and sin ``[P, r / 2]`` of the queries.
    """

    at: slice | Tensor
    i: Tensor
    pages: Tensor
    high: Tensor
    row: Tensor
    angles: dict[Table, tuple[CosSin, ...]] = field(default_factory=dict)


class Choices:
    """The chunks that each of a step's tokens chooses, whose keys it reads in the pages; for all layers.

    Args:
        tables: of a method that chooses.
        i: ``[P]`` int64, the tokens' indices in their texts.
        table: ``[P, n]`` int32, the pages of each token's text, where the pages are.
        size: tokens of a page.
    """

    def __init__(self, tables: Tables, i: Tensor, table: Tensor, size: int) -> None:
        assert tables.chooser is not None and isinstance(tables.chooser.selection, Chunks)
        self.selection, self._bands = tables.chooser.selection, tables.positions.everywhere()
        self._places = torch.arange(size, device=table.device)
        choosing = torch.nonzero(i >= self.selection.first_query).flatten()
        self._groups = list(self._grouped(choosing, i, table, size))

    def _grouped(self, at: Tensor, i: Tensor, table: Tensor, size: int) -> Iterator[_Group]:
        """The queries ``at`` that choose, no more at once than their bounds have room for."""
        if not len(at):
            return
        each, device = self.selection.size // size, table.device
        for some in at.split(max(1, BOUNDS_AT_ONCE // int(self.selection.stops(i[at]).max()))):
            own, chunks = as_slice(some, device), int(self.selection.stops(i[some]).max())
            ends = [torch.minimum(band.keys.hi(i[some]), i[some] + 1).clamp(min=0) for band in self._bands]
            yield _Group(
                at=own,
                i=i[some],
                pages=table[own, : chunks * each].unflatten(1, (chunks, each)),
                high=torch.stack(ends, dim=1)[:, None].to(device),
                row=torch.arange(len(some), device=device)[:, None],
            )

    def add(
        self,
        out: Tensor,
        lse: Tensor,
        q: Tensor,
        cache: Tensor,
        rope: Rope,
        *,
        scale: float,
        softcap: float | None,
        impl: Impl,
    ) -> None:
        """Merge what unrotated queries ``[1, H, P, D]`` chose in a layer's pages into ``out`` and ``lse``, in place.

        Args:
            out, lse: ``[1, H, P, D]`` and ``[1, H, P]``, of other keys.
        """
        for group in self._groups:
            job = self._job(group, q[:, :, group.at], cache, rope, scale, softcap)
            part, part_lse = out[:, :, group.at], lse[:, :, group.at]
            gather_into(part, part_lse, job, impl)
            if not isinstance(group.at, slice):  # those are copies
                out[:, :, group.at], lse[:, :, group.at] = part, part_lse

    def _job(
        self, group: _Group, q: Tensor, cache: Tensor, rope: Rope, scale: float, softcap: float | None
    ) -> PerQueryChunk:
        units, length = self._choose(group, q[0], cache), self.selection.size
        first = group.pages[group.row, units].long() * page_step(cache)
        tokens = (first[..., None] + self._places).flatten(2)[None]
        ends = (group.high - units[..., None] * length).clamp(0, length).sum(dim=2)[None]
        if rope.table not in group.angles:
            at = torch.stack([band.q_pos(group.i).clamp(min=0) for band in self._bands])
            group.angles[rope.table] = tuple(zip(*cos_sin(rope.table, at, q.device), strict=True))
        alone = len(group.i) == 1  # one query chunk, and else each query is one
        keys, values = all_tokens(cache)
        return PerQueryChunk(
            q=q,
            keys=keys,
            v=values,
            rope=rope,
            scale=scale,
            softcap=softcap,
            tokens=tokens[:, :, 0] if alone else tokens,
            ends=ends[:, :, 0] if alone else ends,
            cos_sin=group.angles[rope.table],
            edges=None if alone else tuple(range(len(group.i) + 1)),
        )

    def _choose(self, group: _Group, q: Tensor, cache: Tensor) -> Tensor:
        """``[S, P, chosen]`` int64, the chunks that queries ``[H, P, D]`` choose."""
        low, high = bounds(cache, group.pages[..., -1])
        # Each query is a row of the batch with bounds of its own.
        scores = self.selection.bound_scores(q.transpose(0, 1)[:, :, None], low, high)
        return self.selection.choose(scores[:, :, 0].transpose(0, 1)[None], group.i)[0]
