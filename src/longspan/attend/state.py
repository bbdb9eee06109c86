"""State of one forward's layers. It belongs to that forward, so that several may run at once on one model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from longspan.choosing.queries import Shared
from longspan.kernels.banded import BandAngles, Plan
from longspan.rope import Table


@dataclass(frozen=True, eq=False)
class Ranges:
    """Keys that consecutive queries of a row see, whatever they choose.

    Attributes:
        plan: the keys of each band and the positions that its queries are rotated to.
        rotations: for each band of the plan, which stored rotation of the keys it reads.
    """

    plan: Plan
    rotations: tuple[int, ...]


@dataclass
class TokenSpan:
    """New tokens ``past : past + tokens`` of rows with this padding, and what ``Tables`` computed for them."""

    past: int
    tokens: int
    padding: tuple[int, ...]
    ranges: dict[tuple[int | None, torch.device], Ranges] = field(default_factory=dict)  # by padding; None: of all rows
    shared: Shared = field(default_factory=Shared)
    seen: dict[tuple[int | None, Table, torch.device], tuple[Ranges, BandAngles]] = field(default_factory=dict)
    keys: dict[tuple[int | None, Table, torch.device], BandAngles] = field(default_factory=dict)
    tables: dict[tuple[int, Table], Table] = field(default_factory=dict)


class ForwardState:
    """The state of one forward's layers; a new one for every forward."""

    def __init__(self) -> None:
        self._span = TokenSpan(0, 0, ())
        self._rows: dict[int, ForwardState] = {}

    def row(self, number: int) -> ForwardState:
        """The state of a row that attends alone in all layers, as tokens of other lengths than those of others do."""
        return self._rows.setdefault(number, ForwardState())

    def span(self, past: int, tokens: int, padding: tuple[int, ...]) -> TokenSpan:
        """Results of the layers before for these tokens; layers may hold different numbers of tokens."""
        span = self._span
        if (span.past, span.tokens, span.padding) != (past, tokens, padding):
            span = self._span = TokenSpan(past, tokens, padding)
        return span
