"""Chunks that queries choose by the bounds in the pages, and the keys that each query and key head then reads there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend.tables import Tables
from longspan.kernels.gathered import PerQueryChunk
from longspan.rope import Rope
from longspan.selection.chunks import Chunks
from longspan.selection.queries import QueryBlock
from longspan.selection.selector import Chosen, Selector
from longspan.terms import head_sets
from longspan.vllm.bounds import bounds, last_pages
from longspan.vllm.few import Queries, as_slice, indices, numbers, rows_of
from longspan.vllm.pages import NewTokens

_AT_ONCE = 1 << 14  # chunks whose bounds are copied at once (8 key heads of 128 channels in fp32: 128 MB)


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
        table: ``[n]`` int64, the request's pages.
    """
    own = last_pages(table, selection.candidates(stop), selection.size, cache.shape[2])
    return bounds(cache, own.to(cache.device)[None])


@dataclass(frozen=True)
class _Group:
    """``P`` queries that choose at once.

    Attributes:
        at: where they are among those of ``FewChoosing``.
        i: ``[P]`` int64 on the CPU, their indices in their texts.
        last: ``[P, n]`` int64, the pages that hold their bounds.
        begin: ``[P, n, l / size]`` int64, the numbers of the first tokens of each chunk's pages.
        high: ``[P, 1, bands]`` int64, one past the last key of each band.
        row: ``[P, 1]`` int64, 0 to ``P - 1``.
    """

    at: slice | Tensor
    i: Tensor
    last: Tensor
    begin: Tensor
    high: Tensor
    row: Tensor


class FewChoosing:
    """Tokens of requests with few new ones, which read in the pages what they keep and choose; for all layers.

    Args:
        tables: of the method.
        requests: theirs.
        page_step: how far apart pages lie; see ``pages``.
        size: tokens of a page.
        device: where the pages are.

    Attributes:
        rows: their rows in the batch.
    """

    def __init__(
        self, tables: Tables, requests: Sequence[NewTokens], page_step: int, size: int, device: torch.device
    ) -> None:
        assert tables.chooser is not None and isinstance(tables.chooser.selection, Chunks)
        self.selection, self.rows = tables.chooser.selection, rows_of(requests, device)
        i, kept, bands = indices(requests), self.selection.always(), tables.positions.everywhere()
        chooses = i >= self.selection.first_query
        border = torch.where(chooses, kept.border(i), 0)
        # A token's reads, in order: the first chunk, room for those that it chooses, the keys from its border on.
        low = torch.stack((torch.zeros_like(i), torch.zeros_like(i), border), dim=1)
        high = torch.stack((torch.where(chooses, kept.head, 0), torch.where(chooses, kept.most, 0), i + 1), dim=1)
        of_band = torch.stack([torch.minimum(band.keys.hi(i), i + 1).clamp(min=0) for band in bands], dim=1)
        ends = torch.minimum(of_band, high[:, :1]) + (of_band - border[:, None]).clamp(min=0)
        tokens = numbers(requests, low, high, page_step, size)
        self._queries = Queries([band.q_pos(i).clamp(min=0) for band in bands], device)
        self._tokens, self._ends = (x[None, None].to(device) for x in (tokens, ends))  # [1, 1, P, M or bands]
        self._room, self._places = slice(kept.head, kept.head + kept.most), torch.arange(size, device=device)
        table = torch.nn.utils.rnn.pad_sequence([one.pages for one in requests], batch_first=True)
        table = table.repeat_interleave(torch.tensor([one.count for one in requests]), dim=0)
        self._groups = list(self._grouped(torch.nonzero(chooses).flatten(), i, table, of_band, page_step, size, device))

    def _grouped(
        self, at: Tensor, i: Tensor, table: Tensor, of_band: Tensor, page_step: int, size: int, device: torch.device
    ) -> Iterator[_Group]:
        """The queries ``at`` that choose, no more at once than their bounds have room for."""
        if not len(at):
            return
        length = self.selection.size
        for some in at.split(max(1, _AT_ONCE // int(self.selection.stops(i[at]).max()))):
            chunks = int(self.selection.stops(i[some]).max())
            pages = table[some, : chunks * (length // size)]
            yield _Group(
                at=as_slice(some, device),
                i=i[some],
                last=last_pages(pages, chunks, length, size).to(device),
                begin=(pages * page_step).view(len(some), chunks, -1).to(device),
                high=of_band[some, None].to(device),
                row=torch.arange(len(some), device=device)[:, None],
            )

    def job(self, q: Tensor, cache: Tensor, rope: Rope, scale: float, softcap: float | None) -> PerQueryChunk:
        """The job of unrotated queries ``[1, H, P, D]`` on keys kept and chosen in a layer's pages."""
        tokens, ends = self._tokens, self._ends
        if self._groups:
            sets = head_sets(self.selection.share, q.shape[1], cache.shape[1])
            tokens, ends = (x.repeat(1, sets, 1, 1) for x in (tokens, ends))
        for group in self._groups:
            units = self._choose(group, q[0, :, group.at], cache)
            of_pages = group.begin[group.row, units]
            tokens[0][:, group.at, self._room] = (of_pages[..., None] + self._places).flatten(2)
            before = units[..., None] * self.selection.size
            ends[0][:, group.at] += (group.high - before).clamp(0, self.selection.size).sum(dim=2)
        tokens, ends = self._queries.chunked(tokens), self._queries.chunked(ends)
        return self._queries.job(q, cache, tokens, ends, rope, scale, softcap, shared=False)

    def _choose(self, group: _Group, q: Tensor, cache: Tensor) -> Tensor:
        """``[S, P, chosen]`` int64, the chunks that queries ``[H, P, D]`` choose."""
        low, high = bounds(cache, group.last)
        # Each query is a row of the batch with bounds of its own.
        scores = self.selection.bound_scores(q.transpose(0, 1)[:, :, None], low, high)
        return self.selection.choose(scores[:, :, 0].transpose(0, 1)[None], group.i)[0]
