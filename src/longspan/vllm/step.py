"""One step of the engine: which keys each new token sees, and by which angles; computed once for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend.state import TokenSpan
from longspan.attend.tables import Tables
from longspan.bands import Band
from longspan.kernels.banded import Plan
from longspan.rope import CosSin, Table, cos_sin
from longspan.selection.chunks import Chunks
from longspan.vllm.bounds import Updates
from longspan.vllm.chosen import FewChoosing
from longspan.vllm.pages import NewTokens, Slots

FEW = 4  # new tokens up to which a request's keys are read in their pages, once for each; of more they are copied once


@dataclass(frozen=True)
class FewTokens:
    """Tokens that read their keys in the pages: those of requests with few new ones.

    Attributes:
        rows: ``[P]`` int64, their rows in the batch; None where these are all rows in order.
        tokens: ``[1, P, M]`` int64, the numbers of the keys that each sees, band after band; see ``pages``.
        ends: ``[1, P, bands]`` int64, one past the last of each band.
        positions: for each band ``[P]`` int64, what the queries are rotated to.
    """

    rows: Tensor | None
    tokens: Tensor
    ends: Tensor
    positions: tuple[Tensor, ...]


class Step:
    """The new tokens of one step, for all layers.

    Args:
        tables: of the method.
        requests: those with new tokens, by rows, which they fill without gaps.
        slots: where the new tokens are written.
        size: tokens of a page.

    Attributes:
        many: requests with many new tokens.
    """

    def __init__(self, tables: Tables, requests: Sequence[NewTokens], slots: Slots, size: int) -> None:
        self.slots, self.size, self._tables = slots, size, tables
        self.rows = sum(one.count for one in requests)
        self.many = [(one, TokenSpan(one.past, one.count, (0,))) for one in requests if one.count > FEW]
        self._few_requests = [one for one in requests if one.count <= FEW]
        none = torch.zeros(0, dtype=torch.int64)  # vLLM also runs steps of padding alone
        self._positions = torch.cat([none, *(torch.arange(one.past, one.past + one.count) for one in requests)])
        self._few: dict[int, FewTokens] = {}
        self._updates: Updates | None = None
        self._choosing: FewChoosing | None = None
        self._cos_sin: dict[tuple[bool, Table, torch.device], list[CosSin]] = {}

    def few(self, page_step: int, device: torch.device) -> FewTokens | None:
        """The tokens that read their keys in pages that lie this far apart; None if there are none."""
        if not self._few_requests:
            return None
        if page_step not in self._few:
            bands = self._tables.method.bands(self._tables.window)
            self._few[page_step] = _few(bands, self._few_requests, page_step, self.size, self.rows, device)
        return self._few[page_step]

    def updates(self, selection: Chunks, device: torch.device) -> Updates:
        """What the new tokens do to the bounds of chunks."""
        if self._updates is None:
            many = [one for one, _ in self.many]
            self._updates = Updates(self._few_requests, many, selection.size, self.size, device)
        return self._updates

    def few_choosing(self, device: torch.device) -> FewChoosing | None:
        """The tokens that read in the pages what they choose; None if there are none."""
        if self._choosing is None and self._few_requests:
            self._choosing = FewChoosing(self._tables, self._few_requests, self.size, device)
        return self._choosing

    def key_cos_sin(self, table: Table, device: torch.device) -> CosSin:
        """cos and sin ``[T, r / 2]`` that the new keys are stored under."""
        key = True, table, device
        if key not in self._cos_sin:
            self._cos_sin[key] = [cos_sin(table, self._tables.key_maps[0](self._positions), device)]
        return self._cos_sin[key][0]

    def few_cos_sin(self, few: FewTokens, table: Table, device: torch.device) -> list[CosSin]:
        """For each band cos and sin ``[P, r / 2]`` of the queries that read their keys in the pages."""
        key = False, table, device
        if key not in self._cos_sin:
            self._cos_sin[key] = [cos_sin(table, positions, device) for positions in few.positions]
        return self._cos_sin[key]

    def many_cos_sin(self, span: TokenSpan, table: Table, device: torch.device) -> tuple[Plan, list[CosSin]]:
        """The plan of a request with many new tokens, and its queries' cos and sin for each band."""
        plan = self._tables.ranges(span, 0, span.past, span.past + span.tokens).plan
        return plan, self._tables.queries(span, 0, plan, table, device)


def _few(
    bands: Sequence[Band], requests: Sequence[NewTokens], page_step: int, size: int, rows: int, device: torch.device
) -> FewTokens:
    i = torch.cat([torch.arange(one.past, one.past + one.count) for one in requests])
    owner = torch.cat([torch.full((one.count,), n) for n, one in enumerate(requests)])
    own_rows = torch.cat([torch.arange(one.first, one.first + one.count) for one in requests])
    low = torch.stack([band.keys.lo(i).clamp(min=0) for band in bands], dim=1)
    high = torch.stack([torch.minimum(band.keys.hi(i), i + 1) for band in bands], dim=1)
    ends = (high - low).clamp(min=0).cumsum(dim=1)
    starts = torch.nn.functional.pad(ends[:, :-1], (1, 0))
    n = torch.arange(int(ends[:, -1].max()))
    j = torch.zeros(len(i), len(n), dtype=torch.int64)  # beyond a token's last key, any that there is
    for band in range(len(bands)):
        inside = (n >= starts[:, band, None]) & (n < ends[:, band, None])
        j = torch.where(inside, n - starts[:, band, None] + low[:, band, None], j)
    pages = torch.nn.utils.rnn.pad_sequence([one.pages for one in requests], batch_first=True)
    tokens = pages[owner[:, None], j // size] * page_step + j % size
    return FewTokens(
        rows=None if len(own_rows) == rows else own_rows.to(device),
        tokens=tokens[None].to(device),
        ends=ends[None].to(device),
        positions=tuple(band.q_pos(i).clamp(min=0) for band in bands),
    )
