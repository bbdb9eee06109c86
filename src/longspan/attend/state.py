"""What the layers of one forward share. It belongs to that forward, so that several may run at once on one model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from longspan.kernels.banded import Plan
from longspan.rope import CosSin, Table
from longspan.selection.rows import Shared


@dataclass
class TokenSpan:
    """New tokens ``past : past + tokens`` of rows with this padding: their plans, and cos and sin by position."""

    past: int
    tokens: int
    padding: tuple[int, ...]
    plans: dict[int, tuple[Plan, tuple[int, ...]]] = field(default_factory=dict)  # with the stored keys of each band
    shared: Shared = field(default_factory=Shared)
    query_turns: dict[tuple[int, Table, torch.device], list[CosSin]] = field(default_factory=dict)
    key_turns: dict[tuple[int | None, Table, torch.device], list[CosSin]] = field(default_factory=dict)
    tables: dict[tuple[int, Table], Table] = field(default_factory=dict)


class ForwardState:
    """What the layers of one forward share; a new one for every forward."""

    def __init__(self) -> None:
        self._span = TokenSpan(0, 0, ())

    def span(self, past: int, tokens: int, padding: tuple[int, ...]) -> TokenSpan:
        """What was made for these tokens by the layers before; layers may hold different numbers of tokens."""
        found = self._span
        if (found.past, found.tokens, found.padding) != (past, tokens, padding):
            found = self._span = TokenSpan(past, tokens, padding)
        return found
