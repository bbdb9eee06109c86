"""The last tokens of a layer's unrotated inputs, kept until the chunk that they belong to is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Tail:
    """The last ``keep`` to ``room`` (``2 · keep``) tokens of some tensors ``[B, H, T, D]``.

    Attributes:
        tensors: ``[B, H, room, D]`` each, the same list while they stay where they are; empty before the first tokens.
        start, stop: the stored tokens are ``start : stop`` of the cache's own count.
    """

    def __init__(self, keep: int, room: int | None = None) -> None:
        self.keep, self.room = keep, 2 * keep if room is None else room
        self.reset()

    def reset(self) -> None:
        self.tensors: list[Tensor] = []
        self.start = self.stop = 0

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.tensors)

    @torch.inference_mode(False)  # written to later, perhaps outside inference mode
    def extend(self, new: Sequence[Tensor]) -> None:
        """Add the tokens that follow, ``[B, H, T, D]`` of each tensor, forgetting the oldest if room is short."""
        tokens = new[0].shape[2]
        if not self.tensors:
            self.tensors = [x.new_empty(*x.shape[:2], self.room, x.shape[3]) for x in new]
        self.make_room(tokens)
        skipped = max(tokens - self.room, 0)
        self.start += skipped
        at = self.stop + skipped - self.start
        for stored, x in zip(self.tensors, new, strict=True):
            stored.narrow(2, at, tokens - skipped).copy_(x[:, :, skipped:])
        self.stop += tokens

    def make_room(self, tokens: int) -> None:
        """Forget the oldest tokens if there is no room for so many more; the tensors stay where they are."""
        held = self.stop - self.start
        if held + tokens > self.room:
            stays = min(max(self.keep - tokens, 0), held)
            for stored in self.tensors:
                stored[:, :, :stays] = stored[:, :, held - stays : held].clone()
            self.start = self.stop - stays

    def state(self) -> list[Tensor]:
        """``[B, H, T, D]`` of each tensor, the stored tokens."""
        return [self.slice(n, self.start, self.stop) for n in range(len(self.tensors))]

    def slice(self, which: int, start: int, stop: int) -> Tensor:
        """Tokens ``start : stop`` of one of the tensors, ``[B, H, stop - start, D]``, a view."""
        if not self.start <= start <= stop <= self.stop:
            raise IndexError(f"tokens {start} to {stop} are not stored; {self.start} to {self.stop} are")
        return self.tensors[which][:, :, start - self.start : stop - self.start]

    def restore(self, tensors: Sequence[Tensor], start: int, stop: int, *, needed: int) -> None:
        """Store tokens ``start : stop``, which ``state`` gave as ``tensors``, ``[B, H, stop - start, D]`` each.

        Args:
            needed: the first token whose inputs the index still needs; after a ``crop`` there may be no earlier ones.

        Raises:
            ValueError: they are not that many, or begin later.
        """
        fits = 0 <= start <= min(needed, stop) and stop - start <= self.room
        if not fits or any(x.shape[2] != stop - start for x in tensors) or (stop > start and not tensors):
            raise ValueError(f"the inputs kept are not those of tokens {start} to {stop}")
        self.reset()
        self.start = self.stop = start
        if tensors:
            self.extend(tensors)

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        self.stop = min(self.stop, length)
        self.start = min(self.start, self.stop)

    @torch.inference_mode(False)
    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""
        self.tensors = [x.index_select(0, rows.to(x.device)) for x in self.tensors]

    @torch.inference_mode(False)  # the copy is written to as well
    def __deepcopy__(self, memo: dict[int, Any]) -> Tail:
        twin = Tail(self.keep, self.room)
        twin.tensors, twin.start, twin.stop = [x.clone() for x in self.tensors], self.start, self.stop
        return twin
