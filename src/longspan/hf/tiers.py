"""The conditions for a model's cache to lie off its device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from longspan.errors import CacheError, LongspanError
from longspan.machine.disk import IN_MEMORY, file_system
from longspan.machine.memory import free_memory
from longspan.memory import KVStore, KVTier, Spill, check_tier
from longspan.methods import Method
from longspan.model.layer import Layer
from longspan.model.placement import devices_of


def refuse_offloaded(tier: KVTier, device: torch.device, selecting: bool) -> None:
    """Raise ``CacheError`` for a tier off the device under a method that reads all of it at every token."""
    if tier != "device" and not selecting and device.type != "cpu":
        raise CacheError(
            f"kv_tier={tier!r} keeps the cache off {device}, but the method reads all of it there for every token; "
            "use a method that selects keys, such as longheads or esa, or kv_tier='device'"
        )


def new_store(tier: KVTier, directory: Path | None, window: int) -> KVStore:
    """An empty store of one layer; see ``KVStore``."""
    if tier == "auto":
        return KVStore("device", directory, window=window, spill=new_spill())
    return KVStore(tier, directory, window=window)


def new_spill() -> Spill:
    """The rule for when ``kv_tier="auto"`` has to move a cache."""
    return Spill(free_memory)


def prepare_tier(
    method: Method, layers: list[Layer], tier: KVTier, directory: str | os.PathLike[str] | None
) -> tuple[KVTier, Path | None, tuple[str, ...]]:
    """Raise unless the tier can hold the layers' cache.

    Returns:
        The tier, which is ``"device"`` if ``"auto"`` could never leave it; the folder for ``"disk"`` as an absolute
        path, None for the system's; and what a user should know.

    Raises:
        ValueError: see ``check_tier``; a folder that cannot be written to.
        CacheError: see ``refuse_offloaded``.
    """
    path = check_tier(tier, directory)
    path = path.resolve() if path is not None else None
    if tier in ("auto", "disk"):
        try:
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(b"longspan")
        except OSError as error:
            where, why = path or tempfile.gettempdir(), error.strerror or error
            raise LongspanError(f"kv_dir {where} cannot be written to ({why}); pass a folder that can") from error
    devices = [device for layer in layers if layer.rope is not None for device in devices_of(layer.module)]
    away = next((device for device in devices if device.type != "cpu"), None)
    if tier == "auto" and away is not None and not method.selects:
        note = (
            f"kv_tier='auto' keeps the cache on {away} however short its memory runs: {method.name} reads all of it "
            "there for every token; a method that selects keys, such as longheads or esa, could have it moved"
        )
        return "device", None, (note,)
    for device in devices:
        refuse_offloaded(tier, device, method.selects)
    return tier, path, tuple(_notes(layers, tier, path))


def _notes(layers: list[Layer], tier: KVTier, path: Path | None) -> Iterator[str]:
    if tier == "device":
        return
    stock = [layer.index for layer in layers if layer.rope is None and layer.sliding is None]
    if stock:
        yield f"kv_tier={tier!r} holds the attached layers; the cache of {len(stock)} stock layers stays on the device"
    folder = path if path is not None else Path(tempfile.gettempdir())
    if tier in ("auto", "disk") and file_system(folder) in IN_MEMORY:
        yield f"{folder} is kept in memory by the system ({file_system(folder)}); pass kv_dir=, a folder on a disk"
