"""``kv_tier="auto"``: keys and values move to the next tier when memory runs short or is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from longspan.errors import out_of_memory
from longspan.machine.memory import SHARE
from longspan.memory.buffer import Tier


class Spill:
    """Says when a store has to move, and where to.

    Args:
        free: bytes of memory that are free where tensors of a device lie; None if the system does not say, and then
            a store stays where it is.
    """

    def __init__(self, free: Callable[[torch.device], int | None]) -> None:
        self._free = free

    def below(self, tier: Tier, device: torch.device) -> Tier | None:
        """The tier after ``tier`` for a model on ``device``; None after the last. The CPU's memory is one tier."""
        if tier == "disk":
            return None
        return "host" if tier == "device" and device.type != "cpu" else "disk"

    def has_room(self, tier: Tier, device: torch.device, needed: int) -> bool:
        """Whether a tier has memory for ``needed`` bytes more, as far as the system says."""
        free = self._free(device if tier == "device" else torch.device("cpu"))
        return free is None or needed <= SHARE * free

    def with_room(self, tier: Tier, device: torch.device, needed: int) -> Tier:
        """The first tier from ``tier`` on with memory for ``needed`` bytes more; says so if it is another."""
        while (to := self.below(tier, device)) is not None and not self.has_room(tier, device, needed):
            self.report(tier, to, device)
            tier = to
        return tier

    def after_refusal(self, error: BaseException, tier: Tier, device: torch.device) -> Tier:
        """The tier below ``tier``, whose allocation raised ``error``, and says so.

        Raises:
            ``error``: it is about something else than memory, or there is no tier below.
        """
        to = self.below(tier, device)
        if to is None or not out_of_memory(error):
            raise error
        self.report(tier, to, device, refused=True)
        return to

    def report(self, tier: Tier, to: Tier, device: torch.device, *, refused: bool = False) -> None:
        """Say that keys and values move; the text is that of every layer, so that Python shows it once.

        Args:
            refused: whether an allocation was refused, rather than known to be too large before.
        """
        place = f"of {device}" if tier == "device" else "of the host"
        why = "was refused" if refused else "runs short"
        warnings.warn(
            f"kv_tier='auto': the memory {place} {why}, so keys and values move from tier {tier!r} to {to!r}",
            stacklevel=2,
        )
