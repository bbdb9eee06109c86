"""Requests with few new tokens, which read their keys in the pages; computed once in a step for all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attend.tables import Tables
from longspan.kernels.banded import BandAngles, Pages, plan_rows
from longspan.paged.chosen import Choices
from longspan.paged.pages import NewTokens, as_slice, page_step
from longspan.rope import Table, cos_sin


class FewTokens:
    """New tokens, each of which is a row of its own: what it sees is a range of keys a band, whatever it has stored.

    Args:
        tables: of the method.
        requests: theirs, by rows.
        table: ``[requests, n]``, the pages of each request in order.
        size: tokens of a page.
        device: where the pages are.

    Attributes:
        rows: ``[P]`` int64 or a slice, the tokens' rows in the batch.
        plan: of ``P`` rows of one query.
        choices: the keys that they choose besides; None if they choose none.
    """

    def __init__(
        self, tables: Tables, requests: Sequence[NewTokens], table: Tensor, size: int, device: torch.device
    ) -> None:
        i = indices(requests)
        self.rows = as_slice(counted([one.first for one in requests], requests), device)
        owners = as_slice(torch.tensor([n for n, one in enumerate(requests) for _ in range(one.count)]), device)
        self.plan, self._size, self._device = plan_rows(tables.method.bands(tables.window), i[:, None]), size, device
        self._table = table[owners].to(device, torch.int32)
        self._angles: dict[Table, BandAngles] = {}
        self.choices = None if tables.chooser is None else Choices(tables, i, self._table, size)

    def angles(self, table: Table) -> BandAngles:
        """cos and sin ``[bands, P, 1, r / 2]`` of the queries."""
        if table not in self._angles:
            at = self.plan.positions(table.inv_freq.device)
            self._angles[table] = BandAngles(*cos_sin(table, at, self._device, self.plan.farthest))
        return self._angles[table]

    def pages(self, cache: Tensor) -> Pages:
        """Where the tokens' keys are among those of a layer's pages ``[pages, Hkv, size, 2D]``."""
        return Pages(self._table, self._size, page_step(cache))


def indices(requests: Sequence[NewTokens]) -> Tensor:
    """``[P]`` int64, the new tokens' indices in their texts."""
    return counted([one.past for one in requests], requests)


def counted(begins: Sequence[int], requests: Sequence[NewTokens]) -> Tensor:
    """``[P]`` int64: for each of a request's new tokens the number that it ``begins`` with, and those that follow."""
    counts = torch.tensor([one.count for one in requests], device="cpu")
    ends = counts.cumsum(0)
    first = torch.tensor(begins, device="cpu") - ends + counts
    return torch.repeat_interleave(first, counts) + torch.arange(int(ends[-1]))
