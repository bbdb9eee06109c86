"""One tensor that grows along its tokens, in place, in one of three tiers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from longspan.errors import CacheError, LongspanError
from longspan.memory.mapped import Kind, Mapped, Memory, TokenBlock
from longspan.memory.quantised import Quantised
from longspan.memory.segments import Segments

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
        raise LongspanError(f"kv_tier must be one of auto, {', '.join(get_args(Tier))}, not {tier!r}")
    if directory is None:
        return None
    if tier not in ("auto", "disk"):
        raise LongspanError(
            f"kv_dir is for kv_tier='disk' or 'auto'; kv_tier={tier!r} keeps nothing in {os.fspath(directory)}"
        )
    path = Path(directory)
    if not path.is_dir():
        raise LongspanError(f"kv_dir {path} is not a folder; make it, or leave kv_dir out for {tempfile.gettempdir()}")
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
        tier: ``"device"``, where the tensors are that it is made for; ``"host"``, the CPU's memory (on the CPU it is
            the same as ``"device"``); ``"disk"``, a file without a name, mapped into memory, which grows without
            copies.
        directory: for ``"disk"``, the folder of the file; the system's folder for temporary files unless given.

    Attributes:
        block: what holds it, another object once it lies elsewhere; None before anything was reserved.

    Raises:
        ValueError: see ``check_tier``.
    """

    def __init__(self, tier: Tier = "device", directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = check_tier(tier, directory)
        self.tier: Tier = tier
        self.block: TokenBlock | None = None

    @property
    def kind(self) -> Kind | None:
        """Its block's kind; None before anything was reserved."""
        return self.block.kind if self.block is not None else None

    @property
    def capacity(self) -> int:
        """Tokens there is room for."""
        return self.block.capacity if self.block is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated, in memory or on disk."""
        return self.block.nbytes if self.block is not None else 0

    @property
    def allocated(self) -> Tensor:
        """``[B, H, capacity, D]``, a view unless ``coded``; on the CPU in the tiers ``"host"`` and ``"disk"``."""
        return self.reserved.part(0, self.reserved.capacity)

    def first(self, tokens: int) -> Tensor:
        """``[B, H, tokens, D]``, a view unless ``coded``; there must be as many."""
        return self.reserved.part(0, tokens)

    @property
    def offloaded(self) -> bool:
        """Whether what is held lies elsewhere than on the device it was made for."""
        return self.block is not None and self.block.device != self.block.kind.device

    @property
    def coded(self) -> bool:
        """Whether some of what is held is kept as codes, and dequantised where it is read."""
        return isinstance(self.block, Quantised)

    def growth(self, like: Tensor, tokens: int) -> int:
        """Bytes of the memory that ``reserve`` asks for ``like`` ``[B, H, any, D]``; 0 if there is room."""
        if tokens <= self.capacity and self.block is not None:
            return 0
        if isinstance(self.block, (Segments, Quantised)):  # mapped, and grows in place
            wanted = tokens + SPARE - self.capacity
        else:
            wanted = max(tokens + SPARE, self.capacity * 3 // 2)
        return Kind.of(like).nbytes(wanted)

    def moved(self, tier: Tier, directory: Path | None, tokens: int, room: int) -> Buffer:
        """A buffer with the first ``tokens`` of this one and room for ``room``, in another tier."""
        new, old = Buffer(tier, directory if tier == "disk" else None), self.reserved
        new.block = new._allocate(old.kind, max(room + SPARE, old.capacity))
        new.block.write(0, self.first(tokens))
        return new

    def reserve(self, like: Tensor, tokens: int) -> None:
        """Have room for ``tokens``; what is held stays, and the new room holds nothing in particular.

        Args:
            like: ``[B, H, any, D]``, for the shape, dtype and device.

        Raises:
            CacheError: ``like`` is not what the buffer was made for, or the disk has no room; the buffer is as it was.
        """
        kind, old = Kind.of(like), self.block
        if old is None:
            self.block = self._allocate(kind, tokens + SPARE if tokens else 0)
            return
        refuse_unlike([old.kind], [kind])
        if tokens <= old.capacity:
            return
        capacity = max(tokens + SPARE, old.capacity * 3 // 2)
        if not old.affords(capacity):
            capacity = tokens
        if not old.widen(capacity):
            new = self._allocate(kind, capacity)
            new.write(0, old.part(0, old.capacity))
            self.block = new

    def write(self, start: int, x: Tensor) -> None:
        """Put tokens ``x`` ``[B, H, T, D]`` at ``start``; there must be room."""
        self.reserved.write(start, x)

    def crop(self, tokens: int) -> None:
        """Tokens from ``tokens`` on will be written anew.

        Raises:
            CacheError: they lie in a file, and the system grants no memory for others.
        """
        if self.block is not None:
            self.block.reopen(tokens)

    def fetch(self, start: int, stop: int) -> Tensor:
        """Tokens ``[start, stop)``, ``[B, H, n, D]``, on its device: a view, or a copy if ``offloaded``."""
        part, device = self.reserved.part(start, stop), self.reserved.kind.device
        if not self.offloaded:
            return part
        out = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=device.type == "cuda")
        return out.copy_(part).to(device, non_blocking=True)

    def selected(self, rows: list[int]) -> Buffer:
        """A buffer of rows ``rows`` of the batch, in that order (repeats allowed); this one if those are its own."""
        if self.kind is None or rows == list(range(self.kind.batch)):
            return self
        if not all(0 <= row < self.kind.batch for row in rows):
            raise CacheError(f"the cache holds {self.kind.batch} rows, but rows {rows} were requested")
        return self._copy(rows)

    def reset(self) -> None:
        """Forget everything, and free it."""
        self.block = None

    @property
    def reserved(self) -> TokenBlock:
        """Its block; something was reserved."""
        if self.block is None:
            raise ValueError("nothing was reserved yet")
        return self.block

    def _allocate(self, kind: Kind, capacity: int) -> Memory | Mapped:
        if self.tier == "disk" and kind.nbytes(capacity):  # there is no empty mapping
            return Mapped(kind, capacity, self.directory)
        return Memory(kind, capacity, host=self.tier != "device")

    @torch.inference_mode(False)
    def _copy(self, rows: list[int]) -> Buffer:
        new = Buffer(self.tier, self.directory)
        if self.block is not None:
            new.block = self._allocate(self.block.kind._replace(batch=len(rows)), self.capacity)
            # Row by row, so that no third copy is made on the way.
            for n, row in enumerate(rows):
                new.block.write(0, self.allocated[row : row + 1], slice(n, n + 1))
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        if isinstance(self.block, Quantised):
            new = Buffer(self.tier, self.directory)
            new.block = self.block.copy()
            return new
        # The tensor of a mapped file shows addresses without bytes, which torch would copy too.
        return self._copy(list(range(self.kind.batch if self.kind is not None else 0)))
