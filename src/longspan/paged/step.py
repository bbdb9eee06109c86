"""One step of the engine: which keys each new token sees, and by which angles; computed once for all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.state import TokenSpan
from longspan.attend.tables import Tables
from longspan.choosing.chunks import Chunks
from longspan.kernels.banded import BandAngles, Plan
from longspan.paged.bounds import Updates
from longspan.paged.few import FewTokens, indices
from longspan.paged.pages import NewTokens, Slots, as_slice
from longspan.rope import CosSin, Table, cos_sin

FEW = 4  # new tokens up to which a request's keys are read in their pages, once for each; of more they are copied once


class Step:
    """The new tokens of one step, for all layers.

    Args:
        tables: of the method.
        requests: those with new tokens, by rows, which they fill without gaps.
        slots: where the new tokens are written.
        size: tokens of a page.
        table: ``[requests, n]``, the pages of each request in order, if the engine has it; None if there are none.
            Numbers behind a request's pages may be any of pages that there are.

    Attributes:
        many: requests with many new tokens.
    """

    def __init__(
        self, tables: Tables, requests: Sequence[NewTokens], slots: Slots, size: int, table: Tensor | None = None
    ) -> None:
        self.slots, self.size, self._tables = slots, size, tables
        self.rows = sum(one.count for one in requests)
        self.many = [(one, TokenSpan(one.past, one.count, (0,))) for one in requests if one.count > FEW]
        self._few_requests = [one for one in requests if one.count <= FEW]
        self._few_table = table
        if table is not None and self.many:
            few = torch.tensor([n for n, one in enumerate(requests) if one.count <= FEW], dtype=torch.int64)
            self._few_table = table[as_slice(few, table.device)] if len(few) else None
        # An engine may also run steps of padding alone.
        self._i = indices(requests) if requests else torch.zeros(0, dtype=torch.int64)
        self._few: FewTokens | None = None
        self._updates: Updates | None = None
        self._key_cos_sin: dict[tuple[Table, torch.device], CosSin] = {}

    def few(self, device: torch.device) -> FewTokens | None:
        """The tokens that read their keys in the pages, which are on ``device``; None if there are none."""
        if self._few is None and self._few_requests:
            assert self._few_table is not None
            self._few = FewTokens(self._tables, self._few_requests, self._few_table, self.size, device)
        return self._few

    def updates(self, selection: Chunks, device: torch.device) -> Updates:
        """New tokens' updates of the bounds of chunks."""
        if self._updates is None:
            many = [one for one, _ in self.many]
            self._updates = Updates(self._few_requests, many, selection.size, self.size, device)
        return self._updates

    def key_cos_sin(self, table: Table, device: torch.device) -> CosSin:
        """cos and sin ``[T, r / 2]`` that the new keys are stored under."""
        key = table, device
        if key not in self._key_cos_sin:
            self._key_cos_sin[key] = cos_sin(table, self._tables.key_maps[0](self._i), device)
        return self._key_cos_sin[key]

    def many_cos_sin(self, span: TokenSpan, table: Table, device: torch.device) -> tuple[Plan, BandAngles]:
        """The plan of a request with many new tokens, and for each band cos and sin ``[T, r / 2]`` of its queries."""
        ranges, angles = self._tables.seen(span, 0, span.past, span.past + span.tokens, table, device)
        return ranges.plan, angles
