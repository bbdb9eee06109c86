"""``kv_tier="auto"``: keys and values move to the next tier when the memory that they lie in runs short."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from longspan.store.buffer import Tier

SHARE = 0.8  # of what is free may be asked for; the rest is for what a forward computes with


class Spill:
    """Says when a store has to move, and where to.

    Args:
        free: bytes of memory that are free where tensors of a device lie; None where the system does not say, and then
            a store stays where it is.
    """

    def __init__(self, free: Callable[[torch.device], int | None]) -> None:
        self._free = free

    def below(self, tier: Tier, device: torch.device) -> Tier | None:
        """The tier after ``tier`` for a model on ``device``; None after the last. The CPU's memory is one tier."""
        if tier == "disk":
            return None
        return "host" if tier == "device" and device.type != "cpu" else "disk"

    def short(self, tier: Tier, device: torch.device, needed: int) -> bool:
        """Whether ``needed`` bytes more are too many for the memory of ``tier``."""
        if tier == "disk":
            return False
        free = self._free(device if tier == "device" else torch.device("cpu"))
        return free is not None and needed > SHARE * free

    def report(self, tier: Tier, to: Tier, device: torch.device) -> None:
        """Say that keys and values move; the text is that of every layer, so that Python shows it once."""
        place = f"of {device}" if tier == "device" else "of the host"
        warnings.warn(
            f"kv_tier='auto': the memory {place} runs short, so keys and values move from tier {tier!r} to {to!r}",
            stacklevel=2,
        )
