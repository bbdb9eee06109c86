"""One tensor that grows along its tokens, in place, in one of three tiers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from longspan.errors import CacheError
from longspan.store.memory import Kind, Mapped, Memory
from longspan.store.segments import Segments

Tier = Literal["device", "host", "disk"]
"""Where a cache keeps keys and values: beside the model, in the CPU's memory, or in mapped files."""
KVTier = Literal["auto"] | Tier
"""The same as an option: ``"auto"`` begins on the device, and moves to the next tier when memory runs short."""
SPARE = 64  # tokens more than were asked for, so that a short text does not grow at every token


def check_tier(tier: KVTier, directory: str | os.PathLike[str] | None) -> Path | None:
    """Raise ``ValueError`` unless ``tier`` is one, and ``directory`` an existing folder for one that may use it.

    Returns:
        ``directory`` as a path.
    """
    if tier not in ("auto", *get_args(Tier)):
        raise ValueError(f"kv_tier is one of auto, {', '.join(get_args(Tier))}, not {tier!r}")
    if directory is None:
        return None
    if tier not in ("auto", "disk"):
        raise ValueError(
            f"kv_dir is for kv_tier='disk' or 'auto'; kv_tier={tier!r} keeps nothing in {os.fspath(directory)}"
        )
    path = Path(directory)
    if not path.is_dir():
        raise ValueError(f"kv_dir {path} is not a folder; make it, or leave kv_dir out for {tempfile.gettempdir()}")
    return path


def refuse_unlike(stored: Sequence[Kind | None], new: Sequence[Kind]) -> None:
    """Raise ``CacheError`` unless tensors of these kinds can be added to the stored ones."""
    if stored != new:
        raise CacheError(
            f"the cache holds (batch, heads, size, dtype, device) {[tuple(x or ()) for x in stored]} and cannot take "
            f"{[tuple(x) for x in new]}; start a new cache, or repeat or select this one's rows"
        )


class Buffer:
    """A tensor ``[B, H, capacity, D]`` that grows along its tokens.

    A full one grows by half, so a token is copied about twice over its life, and memory is at most 1.5 times what is
    asked for.

    Args:
        tier: ``"device"``, where the tensors are that it is made for; ``"host"``, the CPU's memory, pinned when those
            are on a CUDA device (on the CPU it is the same memory as ``"device"``); ``"disk"``, a file without a name,
            mapped into memory, which grows without copies.
        directory: for ``"disk"``, the folder of the file; the system's folder for temporary files unless given.

    Attributes:
        kind: what it was made for; None before anything was reserved.
        block: what holds it, another object once it lies elsewhere.

    Raises:
        ValueError: see ``check_tier``.
    """

    def __init__(self, tier: Tier = "device", directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = check_tier(tier, directory)
        self.tier: Tier = tier
        self.kind: Kind | None = None
        self.block: Memory | Mapped | Segments | None = None

    @property
    def capacity(self) -> int:
        """Tokens there is room for."""
        return self.block.capacity if self.block is not None else 0

    @property
    def device(self) -> torch.device:
        """What it was made for; something was reserved."""
        assert self.kind is not None
        return self.kind.device

    @property
    def nbytes(self) -> int:
        """Bytes allocated, in memory or on disk."""
        kind = self.kind
        return kind.batch * kind.heads * self.capacity * kind.token_bytes if kind is not None else 0

    @property
    def allocated(self) -> Tensor:
        """``[B, H, capacity, D]``, a view; on the CPU in the tiers ``"host"`` and ``"disk"``."""
        return self._reserved().tensor[:, :, : self.capacity]

    def first(self, tokens: int) -> Tensor:
        """``[B, H, tokens, D]``, a view; there must be as many."""
        return self._reserved().tensor.narrow(2, 0, tokens)

    @property
    def offloaded(self) -> bool:
        """Whether what is held lies elsewhere than on the device it was made for."""
        return self.kind is not None and self._reserved().tensor.device != self.kind.device

    def growth(self, like: Tensor, tokens: int) -> int:
        """Bytes of the memory that ``reserve`` asks for; 0 where there is room."""
        if tokens <= self.capacity and self.kind is not None:
            return 0
        kind = Kind.of(like)
        if isinstance(self.block, Segments):  # mapped, and grows in place
            wanted = tokens + SPARE - self.capacity
        else:
            wanted = max(tokens + SPARE, self.capacity * 3 // 2)
        return kind.batch * kind.heads * wanted * kind.token_bytes

    def moved(self, tier: Tier, directory: Path | None, tokens: int, room: int) -> Buffer:
        """A buffer with the first ``tokens`` of this one and room for ``room``, in another tier."""
        new = Buffer(tier, directory if tier == "disk" else None)
        if self.block is not None and self.kind is not None:
            new.kind, new.block = self.kind, new._allocate(self.kind, max(room + SPARE, self.capacity))
            new.block.write(0, self.first(tokens))
        return new

    def reserve(self, like: Tensor, tokens: int) -> None:
        """Have room for ``tokens``; what is held stays, and the new room holds nothing in particular.

        Args:
            like: ``[B, H, any, D]``, for the shape, dtype and device.

        Raises:
            CacheError: ``like`` is not what the buffer was made for, or the disk has no room; the buffer is as it was.
        """
        kind = Kind.of(like)
        if self.kind is None or self.block is None:
            self.block = self._allocate(kind, tokens + SPARE if tokens else 0)
            self.kind = kind
            return
        refuse_unlike([self.kind], [kind])
        old = self.block
        if tokens <= old.capacity:
            return
        capacity = max(tokens + SPARE, old.capacity * 3 // 2)
        if not old.affords(capacity):
            capacity = tokens
        if not old.widen(capacity):
            new = self._allocate(kind, capacity)
            new.write(0, old.tensor[:, :, : old.capacity])
            self.block = new

    def write(self, start: int, x: Tensor) -> None:
        """Put tokens ``x`` ``[B, H, T, D]`` at ``start``; there must be room."""
        self._reserved().write(start, x)

    def fetch(self, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)``, ``[B, H, n, D]``, on its device: a view, or a copy if ``offloaded``."""
        part, kind = self._reserved().tensor[:, :, start:stop], self.kind
        assert kind is not None
        if not self.offloaded:
            return part
        out = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=kind.device.type == "cuda")
        return out.copy_(part).to(kind.device, non_blocking=True)

    def select(self, rows: Tensor) -> None:
        """Keep rows ``rows`` ``[n]`` of the batch, in that order (repeats allowed)."""
        chosen = self.selected(rows.tolist())
        self.block, self.kind = chosen.block, chosen.kind

    def selected(self, rows: list[int]) -> Buffer:
        """A buffer of rows ``rows``; this one if those are its own."""
        if self.kind is None or rows == list(range(self.kind.batch)):
            return self
        if not all(0 <= row < self.kind.batch for row in rows):
            raise CacheError(f"the cache holds {self.kind.batch} rows and was asked for rows {rows}")
        return self._copy(rows)

    def reset(self) -> None:
        """Forget everything, and free it."""
        self.block, self.kind = None, None

    def adopt(self, kind: Kind, block: Memory | Segments) -> None:
        """Hold what a block has, made for ``kind``; for a buffer that holds nothing."""
        self.kind, self.block = kind, block

    def _reserved(self) -> Memory | Mapped | Segments:
        if self.block is None:
            raise ValueError("nothing was reserved yet")
        return self.block

    def _allocate(self, kind: Kind, capacity: int) -> Memory | Mapped:
        if self.tier == "disk":
            return Mapped(kind, capacity, self.directory)
        return Memory(kind, capacity, host=self.tier == "host")

    @torch.inference_mode(False)
    def _copy(self, rows: list[int]) -> Buffer:
        new = Buffer(self.tier, self.directory)
        if self.block is not None and self.kind is not None:
            new.kind = self.kind._replace(batch=len(rows))
            new.block = self._allocate(new.kind, self.capacity)
            # Row by row, so that no third copy is made on the way.
            for n, row in enumerate(rows):
                new.block.write(0, self.allocated[row : row + 1], slice(n, n + 1))
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        # The tensor of a mapped file shows addresses without bytes, which torch would copy too.
        return self._copy(list(range(self.kind.batch if self.kind is not None else 0)))
