"""The kernels of a store's next tokens, bound to its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longspan.attend.ahead import TokenTables
from longspan.kernels.decode import DecodeKernel, DecodeRows, Token
from longspan.rope import Rope


@dataclass(frozen=True, eq=False, slots=True)
class BoundRows:
    """Consecutive batch rows from ``first`` on that begin with equal padding, and the kernel of their next tokens.

    It serves them while ``start ≤ past < stop``.
    """

    start: int
    stop: int
    first: int
    padding: int
    tables: TokenTables
    kernel: DecodeKernel

    def token(self, past: int, kept_at: int) -> Token:
        """The kernel's inputs besides queries, keys and values for the token after ``past`` stored slots."""
        token, tables = past - self.padding, self.tables
        ahead = token - tables.start
        return token, ahead, kept_at, tables.stops[ahead], tables.shown[ahead]


@dataclass(frozen=True, eq=False, slots=True)
class BoundKernels:
    """The kernels of a store's next tokens, which hold the addresses of its memory, and what they were made for.

    They serve all rows while ``start ≤ past < stop``.

    Attributes:
        call: runs them all.
        layer: of the call that they were made in.
    """

    start: int
    stop: int
    runs: tuple[BoundRows, ...]
    call: DecodeRows
    layer: tuple[Rope, float, float | None, tuple[int, ...]]

    @property
    def like(self) -> tuple[torch.dtype, tuple[Sequence[int], ...]]:
        """The dtype and the shapes of a row's queries, keys and values."""
        kernel = self.runs[0].kernel
        return kernel.dtype, kernel.shapes
