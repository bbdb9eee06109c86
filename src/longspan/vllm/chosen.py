"""Chunks that queries choose by the bounds in the pages, and the keys that each query and key head then reads there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend.tables import Tables
from longspan.kernels.gathered import PerQueryChunk
from longspan.rope import CosSin, Rope, Table, cos_sin
from longspan.selection.chunks import Chunks
from longspan.selection.queries import QueryBlock
from longspan.selection.selector import Chosen, Selector, choosing
from longspan.vllm import pages
from longspan.vllm.bounds import bounds, last_pages
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
    """Queries that choose at once: where they are among ``FewChoosing``'s, their indices in their texts, and the pages
    ``[P, n]`` that hold their bounds."""

    at: Tensor
    i: Tensor
    pages: Tensor


class FewChoosing:
    """Tokens of requests with few new ones, which read in the pages what they keep and choose; for all layers.

    Args:
        tables: of the method.
        requests: theirs.
        size: tokens of a page.
        device: where the pages are.
    """

    def __init__(self, tables: Tables, requests: Sequence[NewTokens], size: int, device: torch.device) -> None:
        assert tables.chooser is not None and isinstance(tables.chooser.selection, Chunks)
        self.selection, self.size, self.device = tables.chooser.selection, size, device
        i = torch.cat([torch.arange(one.past, one.past + one.count) for one in requests])
        owner = torch.repeat_interleave(torch.tensor([one.count for one in requests]))
        self.rows = torch.cat([torch.arange(one.first, one.first + one.count) for one in requests]).to(device)
        table = torch.nn.utils.rnn.pad_sequence([one.pages for one in requests], batch_first=True)
        self._table = table[owner].to(device)
        kept, chooses = self.selection.always(), i >= self.selection.first_row
        border = torch.where(chooses, kept.border(i), 0)
        self._head = torch.where(chooses, kept.head, 0).to(device)[:, None]
        self._most = torch.where(chooses, kept.most, 0).to(device)[:, None]
        self._border = border.to(device)[:, None]
        counts = torch.where(chooses, kept.head + kept.most, 0) + i + 1 - border
        self._n = torch.arange(int(counts.max()), device=device)
        self._counts = counts.to(device)[:, None]
        bands = tables.positions.everywhere()
        self._ends = torch.stack([torch.minimum(band.keys.hi(i), i + 1) for band in bands], dim=1).to(device)
        self._positions = [band.q_pos(i).clamp(min=0) for band in bands]
        self._groups = self._grouped(torch.nonzero(chooses).flatten(), i)
        self._cos_sin: dict[Table, tuple[CosSin, ...]] = {}

    def _grouped(self, at: Tensor, i: Tensor) -> list[_Group]:
        """The queries that choose, no more at once than their bounds have room for."""
        if not len(at):
            return []
        chunks = int(self.selection.stops(i[at]).max())
        groups = []
        for some in at.split(max(1, _AT_ONCE // chunks)):
            most = int(self.selection.stops(i[some]).max())
            table = self._table[some.to(self.device)]
            own = last_pages(table, most, self.selection.size, self.size)
            groups.append(_Group(some.to(self.device), i[some], own))
        return groups

    def job(self, q: Tensor, cache: Tensor, rope: Rope, scale: float, softcap: float | None) -> PerQueryChunk:
        """What each token keeps and chooses, one run a band.

        Args:
            q: ``[1, H, T, D]`` of the whole step, unrotated; the step's new keys are in the pages.
        """
        q = q[:, :, self.rows]
        tokens, ends = self._tokens(self._units(q, cache), pages.page_step(cache))
        keys, values = pages.all_tokens(cache)
        count = tokens.shape[2]
        if rope.table not in self._cos_sin:
            self._cos_sin[rope.table] = tuple(cos_sin(rope.table, at, self.device) for at in self._positions)
        return PerQueryChunk(
            q=q,
            keys=keys,
            v=values,
            rope=rope,
            scale=scale,
            softcap=softcap,
            tokens=tokens[:, :, 0] if count == 1 else tokens,
            ends=ends[:, :, 0] if count == 1 else ends,
            cos_sin=self._cos_sin[rope.table],
            edges=None if count == 1 else tuple(range(count + 1)),
        )

    def _units(self, q: Tensor, cache: Tensor) -> Tensor:
        """``[S, P, chosen]`` int64, the chunks that queries ``[1, H, P, D]`` choose; any for those that do not."""
        sharing = choosing(self.selection.share, q.shape[1], cache.shape[1])
        units = torch.zeros(sharing, q.shape[2], self.selection.chosen, dtype=torch.int64, device=self.device)
        for group in self._groups:
            low, high = bounds(cache, group.pages)
            # Each query is a row of the batch with bounds of its own.
            scores = self.selection.bound_scores(q[0, :, group.at].transpose(0, 1)[:, :, None], low, high)
            units[:, group.at] = self.selection.choose(scores[:, :, 0].transpose(0, 1)[None], group.i)[0]
        return units

    def _tokens(self, units: Tensor, page_step: int) -> tuple[Tensor, Tensor]:
        """The numbers ``[1, S, P, M]`` of the keys that each query reads, and their ends ``[1, S, P, bands]``."""
        length, n = self.selection.size, self._n
        place = (n - self._head).clamp(min=0)
        among = (place // length).clamp(max=units.shape[2] - 1).expand(units.shape[0], -1, -1)
        chosen = units.gather(2, among) * length + place % length
        last = self._border + n - self._head - self._most
        j = torch.where(n < self._head, n, torch.where(n < self._head + self._most, chosen, last))
        seen = n < self._counts
        j = torch.where(seen, j, 0)
        ends = torch.stack([((j < end) & seen).sum(dim=-1) for end in self._ends[:, :, None].unbind(1)], dim=-1)
        page = self._table.expand(units.shape[0], -1, -1).gather(2, j // self.size)
        return (page * page_step + j % self.size)[None], ends[None]
