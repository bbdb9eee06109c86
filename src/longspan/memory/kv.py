"""The keys and values of one layer."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.errors import CacheError
from longspan.memory.buffer import Buffer, Tier, check_tier, refuse_unlike
from longspan.memory.mapped import Kind, TokenBlock
from longspan.memory.mirror import Mirror
from longspan.memory.protocols import KeyIndex, Placement, Slot
from longspan.memory.quantised import Coded, Codes, Quantised
from longspan.memory.spill import Spill


class KVStore:
    """Values and one or more rotations of the keys, ``[B, Hkv, length, D]``, appended to without copying the past.

    A *stream* is one of those: the number of a rotation, or None for the values.

    Args:
        tier: where they lie; see ``Buffer``. The index lies on the device in every tier.
        directory: the folder for ``"disk"``.
        window: how many of the tokens before the last append the device keeps a copy of, besides those appended, if
            ``tier`` keeps them off the device.
        spill: with it what is stored moves from ``tier`` to the next ones when memory runs short or is refused.

    Attributes:
        tier: where they lie now.
        length: tokens stored.
        capacity: tokens that there is memory for; 0 when nothing was stored yet.
        mirror: the device's copy of the last tokens if they are brought, else None.
        index: what the method chooses by, or None; the store's own crops, selections and resets go to it too.
        placement: another object once the stored tokens may have moved, for kernels that hold their addresses.

    Raises:
        ValueError: see ``check_tier``; a negative window.
    """

    def __init__(
        self,
        tier: Tier = "device",
        directory: str | os.PathLike[str] | None = None,
        window: int = 0,
        spill: Spill | None = None,
    ) -> None:
        if window < 0:
            raise ValueError(f"window must be a number of tokens, not {window}")
        self.directory = check_tier(tier if spill is None else "auto", directory)
        self.tier: Tier = tier
        self._first_tier: Tier = tier
        self.spill = spill
        self.window = window
        self.length = 0
        self.index: KeyIndex | None = None
        self.placement = Placement()
        self.capacity = 0
        self._buffers: list[Buffer] = []  # the rotations, then the values
        self.mirror: Mirror | None = None

    @property
    def offloaded(self) -> bool:
        """Whether keys and values lie elsewhere than on the device of what was appended."""
        return bool(self._buffers) and self._buffers[0].offloaded

    @property
    def coded(self) -> bool:
        """Whether some keys and values are kept as codes."""
        return bool(self._buffers) and self._buffers[0].coded

    @property
    def brought(self) -> bool:
        """Whether kernels cannot read keys and values where they lie, and get those that they need."""
        return self.coded or self.offloaded

    @property
    def nbytes(self) -> int:
        """Bytes allocated, in all tiers."""
        return sum(self.bytes_by_tier.values())

    @property
    def bytes_by_tier(self) -> dict[Tier, int]:
        """Bytes allocated on the device, in host memory and on disk; the index and the mirror are on the device."""
        sizes: dict[Tier, int] = {"device": 0, "host": 0, "disk": 0}
        sizes["device"] += self.index.nbytes if self.index is not None else 0
        sizes["device"] += self.mirror.nbytes if self.mirror is not None else 0
        sizes[self.tier] += sum(buffer.nbytes for buffer in self._buffers)
        return sizes

    @property
    def keys(self) -> list[Tensor]:
        """Each stored rotation of the keys, ``[B, Hkv, length, D]``, as views of where they lie unless ``coded``."""
        return [buffer.first(self.length) for buffer in self._buffers[:-1]]

    @property
    def values(self) -> Tensor:
        """``[B, Hkv, length, Dv]``, a view of where they lie unless ``coded``."""
        return self._buffers[-1].first(self.length)

    @property
    def codes(self) -> list[Codes] | None:
        """The tokens in int8 of each rotation of the keys, then of the values; None unless ``coded``."""
        blocks = [buffer.reserved for buffer in self._buffers]
        found = [one.coded for one in blocks if isinstance(one, Quantised)]
        return found if self.coded else None

    @property
    def tails(self) -> list[Tensor]:
        """The memory behind those, ``[1, Hkv, capacity - N, D]``, where the store is ``coded``."""
        blocks = [buffer.reserved for buffer in self._buffers]
        room = min((one.capacity - one.count for one in blocks if isinstance(one, Quantised)), default=0)
        return [one.tail(room) for one in blocks if isinstance(one, Quantised)]

    @property
    def rotations(self) -> int:
        """How many rotations of the keys it holds."""
        return max(len(self._buffers) - 1, 0)

    @property
    def lying(self) -> list[Tensor | Coded]:
        """Each rotation of the keys, then the values, as they lie: codes are dequantised when some are chosen."""
        blocks = [buffer.reserved for buffer in self._buffers]
        return [
            Coded(one, 0, self.length) if isinstance(one, Quantised) else one.part(0, self.length) for one in blocks
        ]

    def shape(self, stream: int | None) -> torch.Size:
        """``[B, Hkv, length, D]`` of a stream."""
        kind = self._buffers[-1 if stream is None else stream].reserved.kind
        return torch.Size((kind.batch, kind.heads, self.length, kind.size))

    def state(self) -> list[Tensor]:
        """All that is stored: each rotation of the keys, the values, and what the index keeps; empty if nothing is."""
        if not self._buffers:
            return []
        return [*self.keys, self.values, *(self.index.state() if self.index is not None else ())]

    def append(self, keys: Sequence[Tensor], values: Tensor) -> None:
        """Add ``T`` tokens: ``[B, Hkv, T, D]`` for each rotation, and ``[B, Hkv, T, Dv]``.

        Raises:
            CacheError: they do not fit what is stored, or the disk is full; the store is as it was.
        """
        self.placement = Placement()
        new = [*keys, values]
        kinds, tokens = [Kind.of(x) for x in new], values.shape[2]
        if any(x.shape[2] != tokens for x in new):
            raise CacheError(f"keys and values of {[x.shape[2] for x in new]} tokens; their numbers must be equal")
        if self._buffers:
            refuse_unlike([buffer.kind for buffer in self._buffers], kinds)
        stop = self.length + tokens
        buffers = self._reserved(new, stop)
        # Steps that can fail come first, and until the length says so nothing counts as stored.
        for buffer, x in zip(buffers, new, strict=True):
            buffer.write(self.length, x)
        mirror = self.mirror
        if mirror is None and (buffers[0].offloaded or buffers[0].coded):
            mirror = self._mirror_of(buffers) if self.length else Mirror(self.window)
        if mirror is not None:
            mirror.append(new)
        self.mirror, self.length = mirror, stop
        self._hold(buffers)

    def reserve_one(self) -> Slot | None:
        """Memory for the next token; None if it takes more than writing it there, by the index too."""
        kept_at, completes = 0, False
        if not self.length or (self.tier != "device" and self.offloaded):
            return None
        self._buffers[0].reserved.check_process()
        if self.index is not None:
            slot = self.index.reserve_one()
            if slot is None:
                return None
            kept_at, completes = slot.kept_at, slot.completes
            if slot.moved:
                self.placement = Placement()
        if moved := self.length == self.capacity:
            self.reserve(self.length + 1)
            if self.tier != "device" and self.offloaded:  # it has moved off the device
                return None
        return Slot(self.length, kept_at, moved, completes)

    def commit_one(self) -> None:
        """The token was written to what ``reserve_one`` gave, and counts as stored."""
        self.length += 1
        if self.index is not None:
            self.index.commit_one()
        self.mirror = None  # it has not seen the token

    def reserve(self, tokens: int) -> None:
        """Have room for ``tokens`` in all, so that appending up to there moves nothing; the store is not empty.

        Raises:
            CacheError: the disk has no room; the store is as it was.
        """
        self.placement = Placement()  # first: if memory runs out at one stream, those before it have moved
        self._hold(self._reserved([buffer.reserved.part(0, 0) for buffer in self._buffers], tokens))

    @property
    def allocated(self) -> list[Tensor]:
        """Each rotation of the keys, then the values, ``[B, Hkv, capacity, D]``, with what is not filled yet."""
        # Mapped buffers end at a page, which is at another token if keys and values differ in size.
        return [buffer.first(self.capacity) for buffer in self._buffers]

    def put(self, place: Tensor, keys: Sequence[Tensor], values: Tensor) -> None:
        """Write the token ``[B, Hkv, 1, D]`` of each stream to where ``place`` ``[1]`` (int64, on the device) says.

        It counts as stored once ``commit_one`` says so; there is memory for it, and nothing is offloaded.
        """
        for stream, x in zip(self.allocated, (*keys, values), strict=True):
            stream.index_copy_(2, place, x)

    def take(self, stream: int | None, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)`` of a stream, on the device: ``[B, Hkv, stop - start, D]``.

        A view if the device has them, which holds until the next append; else a copy.
        """
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"there are tokens 0 to {self.length}, and [{start}, {stop}) was requested")
        if not self._buffers:
            raise ValueError("the store is empty")
        rotations = len(self._buffers) - 1
        if stream is not None and not 0 <= stream < rotations:
            raise ValueError(f"there are {rotations} rotations of the keys, and number {stream} was requested")
        n = rotations if stream is None else stream
        if self.mirror is not None and self.mirror.start <= start:
            return self.mirror.part(n, start, stop)
        return self._buffers[n].fetch(start, stop)

    def crop(self, tokens: int) -> None:
        """Forget the last ``tokens`` tokens."""
        if not 0 <= tokens <= self.length:
            raise ValueError(f"cannot drop {tokens} of {self.length} tokens")
        length = self.length - tokens
        for buffer in self._buffers:
            buffer.crop(length)
        if self.index is not None:
            self.index.crop(length)
        self.length = length
        if self.coded:  # the memory behind the codes may begin earlier now
            self.placement = Placement()
            self.capacity = min(buffer.capacity for buffer in self._buffers)
        if self.mirror is not None:
            self.mirror.crop(length)
            if self.mirror.start > max(0, length - self.window):
                self.mirror = self._mirror_of(self._buffers)

    def croppable(self, length: int) -> int:
        """The most tokens, at most ``length``, that ``crop`` can leave: an index may not have the inputs for more."""
        return length if self.index is None else self.index.croppable(length)

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` of the batch, in that order (repeats allowed): ``[B]`` int64, of the new ``B``."""
        chosen = rows.tolist()
        # Nothing is given up before the last of it was made.
        buffers = [buffer.selected(chosen) for buffer in self._buffers]
        mirror = self.mirror.selected(chosen) if self.mirror is not None else None
        self.placement = Placement()
        if self.index is not None:
            self.index.select(rows)
        self.mirror = mirror
        self._hold(buffers)

    def reset(self) -> None:
        """Forget everything and free it; a store moved for lack of memory begins anew in its first tier."""
        self.mirror, self.length, self.tier = None, 0, self._first_tier
        self._hold([])
        if self.index is not None:
            self.index.reset()

    def _hold(self, buffers: list[Buffer]) -> None:
        self._buffers = buffers
        if not self.brought:  # it would miss the tokens that kernels write where they lie
            self.mirror = None
        self.placement = Placement()
        self.capacity = min((buffer.capacity for buffer in buffers), default=0)

    def adopt(self, streams: Sequence[TokenBlock], length: int) -> None:
        """Hold ``length`` tokens that lie in blocks: each rotation of the keys, then the values; the store is empty."""
        buffers = [self._buffer() for _ in streams]
        for buffer, block in zip(buffers, streams, strict=True):
            buffer.block = block
        self.length = length
        if buffers[0].offloaded:
            self.tier = "host" if self.tier == "device" else self.tier
        if buffers[0].offloaded or buffers[0].coded:
            self.mirror = self._mirror_of(buffers)
        self._hold(buffers)

    def _buffer(self) -> Buffer:
        return Buffer(self.tier, self.directory if self.tier == "disk" else None)

    def _mirror_of(self, buffers: Sequence[Buffer]) -> Mirror:
        """The recent tokens of ``buffers``, on the device."""
        recent = max(0, self.length - self.window)
        mirror = Mirror(self.window, recent)
        mirror.append([buffer.fetch(recent, self.length) for buffer in buffers])
        return mirror

    def _reserved(self, like: Sequence[Tensor], tokens: int) -> list[Buffer]:
        """The buffers with room for ``tokens``, in the first tier from this one on that has and grants the memory.

        Args:
            like: a tensor for each stream, of its shape but for the tokens, on the device.

        Raises:
            CacheError: the disk has no room, or the files are another process's. What an allocator raises, if there
                is no next tier. The store is as it was.
        """
        if self._buffers:
            self._buffers[0].reserved.check_process()
        if self._buffers and tokens <= self.capacity:
            return self._buffers
        device = self._buffers[0].reserved.kind.device if self._buffers else like[0].device
        if self.spill is not None:
            buffers = self._buffers or [self._buffer() for _ in like]
            needed = sum(buffer.growth(x, tokens) for buffer, x in zip(buffers, like, strict=True))
            tier = self.spill.with_room(self.tier, device, needed)
            if tier != self.tier:
                self._move(self.spill, tier, tokens)
        while True:
            buffers = self._buffers or [self._buffer() for _ in like]
            try:
                for buffer, x in zip(buffers, like, strict=True):
                    buffer.reserve(x, tokens)
                return buffers
            except (MemoryError, RuntimeError) as error:
                if self.spill is None:
                    raise
                self._move(self.spill, self.spill.after_refusal(error, self.tier, device), tokens)

    def _move(self, spill: Spill, tier: Tier, tokens: int) -> None:
        """Move to ``tier`` with room for ``tokens``, or to the first one below it whose memory is not refused."""
        moved: list[Buffer] = []
        while not moved and self._buffers:
            try:
                moved = [buffer.moved(tier, self.directory, self.length, tokens) for buffer in self._buffers]
            except (MemoryError, RuntimeError) as error:
                tier = spill.after_refusal(error, tier, self._buffers[0].reserved.kind.device)
        self.tier = tier
        self._hold(moved)  # first: its memory on the device is free for the mirror then
        if moved and self.mirror is None and moved[0].offloaded:
            self.mirror = self._mirror_of(moved)
