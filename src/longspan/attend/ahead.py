"""Tables of single tokens on a device other than the CPU, for many tokens at once: a token copies nothing there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attend.state import Ranges
from longspan.kernels.banded import BandAngles, Plan
from longspan.rope import CosSin


@dataclass(frozen=True, eq=False)
class RangesAhead:
    """The keys of tokens from ``start`` on that come one at a time.

    Attributes:
        own: of all these tokens.
        on_device: ``[n, bands, 2, 1]`` int32, the same token by token.
        reach: how many keys each token sees.
    """

    start: int
    own: Ranges
    on_device: Tensor
    reach: list[int]

    @classmethod
    def of(cls, own: Ranges, device: torch.device) -> RangesAhead:
        plan = own.plan
        ranges = torch.stack([torch.stack(plan.lo, dim=1), torch.stack(plan.hi, dim=1)], dim=2)
        reach = (ranges[:, :, 1] - ranges[:, :, 0]).sum(dim=1).tolist()
        return cls(plan.start, own, ranges.int()[..., None].to(device), reach)

    def token(self, token: int) -> Ranges:
        """The keys of one of the tokens, with the bands of all of them."""
        t, plan = token - self.start, self.own.plan
        lo, hi, q_pos = (tuple(x[t : t + 1] for x in xs) for xs in (plan.lo, plan.hi, plan.q_pos))
        one = Plan(token, token + 1, plan.bands, lo, hi, q_pos)
        one.give(self.on_device[t], self.reach[t])
        return Ranges(one, self.own.rotations)


@dataclass(frozen=True, eq=False)
class AnglesAhead:
    """cos and sin of tokens from ``start`` on that come one at a time, in rows that lie token by token.

    Attributes:
        queries: ``[n, bands, 1, r / 2]`` each, with the method's factor.
        keys: ``[n, rotations, 1, r / 2]`` each, of the tokens' own keys in each stored rotation.
    """

    start: int
    queries: CosSin
    keys: CosSin

    @classmethod
    def of(cls, start: int, queries: CosSin, keys: CosSin) -> AnglesAhead:
        """Of angles that lie by band and by rotation, ``[bands or rotations, n, r / 2]``."""
        cos, sin, key_cos, key_sin = (x.transpose(0, 1).contiguous()[:, :, None] for x in (*queries, *keys))
        return cls(start, (cos, sin), (key_cos, key_sin))

    def of_queries(self, token: int) -> BandAngles:
        cos, sin = self.queries
        return BandAngles(cos[token - self.start], sin[token - self.start])

    def of_keys(self, token: int) -> BandAngles:
        cos, sin = self.keys
        return BandAngles(cos[token - self.start], sin[token - self.start])
