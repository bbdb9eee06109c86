"""Tables of single tokens, for many tokens at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend.state import Ranges
from longspan.kernels.banded import BandAngles, Plan

AHEAD = 128  # single tokens that tables are computed for at once


@dataclass(frozen=True, eq=False)
class TokenTables:
    """Tables of tokens ``start : start + AHEAD`` of a row that come one at a time, under one table of angles.

    Attributes:
        ranges: the keys of each band; on the CPU.
        queries: cos and sin ``[bands, AHEAD, r / 2]`` of the bands' queries, with the method's factor.
        keys: cos and sin ``[rotations, AHEAD, r / 2]`` of the tokens' own keys in each stored rotation.
        shown: how many keys the bands show to each token.
        stops: one past the last unit that each token chooses from, 0 if it chooses none.
        positions: ``[AHEAD, m]`` or ``[1, m]`` int64, where a token sees its chosen units from; None if that depends on
            what it chooses.
    """

    start: int
    ranges: Ranges
    queries: BandAngles
    keys: BandAngles
    shown: list[int]
    stops: list[int]
    positions: Tensor | None


@dataclass(frozen=True, eq=False)
class DeviceTables:
    """The same on another device, whose kernels read it token by token, so that a token copies nothing there.

    Attributes:
        own: on the CPU.
        ranges: ``[AHEAD, bands, 2, 1]`` int32.
        queries, keys: cos and sin ``[AHEAD, bands or rotations, 1, r / 2]``.
        positions: see ``TokenTables``.
    """

    own: TokenTables
    ranges: Tensor
    queries: BandAngles
    keys: BandAngles
    positions: Tensor | None

    @classmethod
    @torch.inference_mode(False)  # kept for later calls, which may be outside of it
    def of(cls, own: TokenTables, device: torch.device) -> DeviceTables:
        plan, positions = own.ranges.plan, own.positions
        ranges = plan.ranges(torch.device("cpu")).permute(2, 0, 1)[..., None].contiguous()
        queries, keys = (
            BandAngles(*(x.transpose(0, 1)[:, :, None].contiguous().to(device) for x in (one.cos, one.sin)))
            for one in (own.queries, own.keys)
        )
        return cls(own, ranges.to(device), queries, keys, None if positions is None else positions.to(device))

    def token(self, token: int) -> tuple[Ranges, BandAngles]:
        """The keys of one of the tokens, with the bands of all of them, and the angles of its queries."""
        t, (plan, rotations) = token - self.own.start, (self.own.ranges.plan, self.own.ranges.rotations)
        lo, hi, q_pos = (tuple(x[t : t + 1] for x in xs) for xs in (plan.lo, plan.hi, plan.q_pos))
        one = Plan(token, token + 1, plan.bands, lo, hi, q_pos)
        one.give(self.ranges[t], self.own.shown[t])
        return Ranges(one, rotations), BandAngles(self.queries.cos[t], self.queries.sin[t])

    def key(self, token: int) -> BandAngles:
        """The angles of the key of one of the tokens."""
        t = token - self.own.start
        return BandAngles(self.keys.cos[t], self.keys.sin[t])

    def positions_of(self, token: int) -> Tensor | None:
        """Where one of the tokens sees its chosen units from, ``[1, m]``."""
        t, at = token - self.own.start, self.positions
        return at if at is None or len(at) == 1 else at[t : t + 1]
