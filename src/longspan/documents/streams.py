"""A cache's text as streams that only grow and a small state; and a cache made of those again.

This is the one place that knows how the cache, its stores and their indices keep a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from longspan.choosing.saved import Entries, SavableIndex, SavedIndex
from longspan.choosing.selector import Selector
from longspan.documents.coding import Coder, read_back
from longspan.documents.manifest import ENTRIES, SCALES, Segment, Stream
from longspan.documents.state import State
from longspan.errors import DocumentError
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.hf.hooks import Attachment
from longspan.hf.stock import IdleLayer, keeps_nothing
from longspan.hf.tiers import new_spill
from longspan.machine.parts import Part
from longspan.memory import KVStore, KVTier, Tier
from longspan.memory.mapped import Kind, TokenBlock
from longspan.memory.segments import Access, lay

_VALUES = "values"
_STOCK = ("stock keys", "stock values")


@dataclass
class CacheStreams:
    """A cache's streams.

    Attributes:
        streams: views: ``[H, N, W]`` of each.
        rooms: the most entries of each when the cache holds so many tokens as were asked about.
        whole: whether those are all streams that there will be: an index of no unit yet does not say how large one is.
    """

    streams: list[Stream] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    whole: bool = True

    def add(self, layer: int, name: str, tensor: Tensor, room: int, stands_for: str = "") -> None:
        """One stream, ``[1, H, N, W]``."""
        self.streams.append(Stream(layer, name, tensor.shape[1], tensor.shape[3], _name(tensor.dtype), stands_for))
        self.views.append(tensor[0])
        self.rooms.append(room)


def refuse_layers(cache: LongspanCache) -> None:
    """Raise ``DocumentError`` if a layer of a cache, which may be empty, keeps what is no stream of tokens."""
    held = StoreLayer, DynamicLayer, IdleLayer, DynamicSlidingWindowLayer
    for number, layer in enumerate(cache.layers):
        if type(layer) not in held and not keeps_nothing(layer):
            raise DocumentError(
                f"layer {number} keeps a {type(layer).__name__}, which a document cannot hold; use longspan.extend "
                "and model.generate instead"
            )


def streams_of(cache: LongspanCache, tokens: int, coder: Coder | None = None, begin: int = 0) -> CacheStreams:
    """The streams of a cache that is to hold ``tokens`` tokens.

    Args:
        coder: makes int8 of keys and values from token ``begin`` on, and has those before; None to keep them exact.

    Raises:
        DocumentError: see ``refuse_layers``.
    """
    refuse_layers(cache)
    streams = CacheStreams()
    indices: list[tuple[int, Any]] = []
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, StoreLayer):
            store = layer.store
            for n in (*range(len(store.keys)), None) if coder is None else ():
                streams.add(number, _stream_name(n), store.values if n is None else store.keys[n], tokens)
            if coder is not None:
                _add_coded(streams, number, store, coder, begin, tokens)
            indices.append((number, store.index))
        elif type(layer) in (DynamicLayer, IdleLayer) and layer.is_initialized:
            for name, tensor in zip(_STOCK, (layer.keys, layer.values), strict=True):
                streams.add(number, name, cast(Tensor, tensor), tokens)
    for number, index in indices:  # after the others, since they may begin later
        if not _savable(index):
            continue
        entries, room = index.save().entries, index.most_entries(tokens)
        if entries is not None:
            streams.add(number, ENTRIES, entries, room)
        elif room:
            streams.whole = False
    return streams


def state_of(cache: LongspanCache) -> State:
    """The small state of a cache."""
    state = State()
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, StoreLayer):
            index = layer.store.index
            if _savable(index):
                saved = index.save()
                state.tensors.update({f"{number}.tail.{n}": _own(x) for n, x in enumerate(saved.inputs)})
                state.counts.update({f"{number}.{name}": list(values) for name, values in saved.counts.items()})
        elif isinstance(layer, DynamicSlidingWindowLayer) and layer.is_initialized:
            state.tensors.update({f"{number}.keys": _own(layer.keys), f"{number}.values": _own(layer.values)})
            state.counts[f"{number}.seen"] = [layer.cumulative_length]
    return state


def new_cache(
    attachment: Attachment,
    device: torch.device,
    streams: Sequence[Stream],
    parts: Sequence[Sequence[Part]],
    segments: Sequence[Segment],
    state: State,
    tokens: int,
) -> LongspanCache:
    """A cache of its own that holds ``tokens`` tokens, which lie in ``parts`` of files, in the order of ``streams``.

    Raises:
        DocumentError: streams and state are not those of this model and method.
    """
    cache = attachment.new_cache()
    if not tokens:
        return cache
    counts = [max((part.stop for part in own), default=0) for own in parts]
    entries = {one.layer: count for one, count in zip(streams, counts, strict=True) if one.name == ENTRIES}
    blocks = _laid(attachment, device, streams, parts, segments, counts)
    ropes = {layer.index: layer.rope for layer in attachment.layers}
    try:
        for number, layer in enumerate(cache.layers):
            if isinstance(layer, StoreLayer):
                layer.lazy_initialization(torch.empty(0), torch.empty(0))
                _fill_store(attachment, layer, number, ropes[number], blocks, entries, state, tokens)
            else:
                _fill_stock(cast(DynamicLayer, layer), number, blocks, state, tokens, device)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise DocumentError(
            f"its state is not that of {attachment.report.model} under {attachment.attender.method.name} "
            f"({type(error).__name__}: {' '.join(str(error).split())}); it was damaged or made by hand: read the text "
            "again"
        ) from error
    cache.padding = (0,)
    cache.calls.adopt(tokens)
    return cache


def stays_on_host(tier: KVTier, device: torch.device, needed: int) -> bool:
    """Whether keys and values that lie in files stay in the CPU's memory, mapped.

    Args:
        needed: bytes that they would take on the device. ``"auto"`` has them there while there is room, and says so
            if there is none.
    """
    if tier != "auto" or device.type == "cpu":
        return tier != "device"
    spill = new_spill()
    if spill.has_room("device", device, needed):
        return False
    spill.report("device", "host", device)
    return True


def _laid(
    attachment: Attachment,
    device: torch.device,
    streams: Sequence[Stream],
    parts: Sequence[Sequence[Part]],
    segments: Sequence[Segment],
    counts: Sequence[int],
) -> dict[tuple[int, str], TokenBlock]:
    """The streams that have tokens, on the device or in the host's memory, as the cache's tier says and allows."""
    tier, selects = attachment.report.kv_tier, attachment.attender.method.selects
    kinds = [Kind(1, one.heads, one.width, getattr(torch, one.stands_for or one.dtype), device) for one in streams]

    def all_of_them(on_host: bool) -> dict[tuple[int, str], TokenBlock]:
        blocks: dict[tuple[int, str], TokenBlock] = {}
        for stream, kind, own, count in zip(streams, kinds, parts, counts, strict=True):
            if count and not (stream.stands_for or stream.name.endswith(SCALES)):
                host = on_host and stream.name != ENTRIES and stream.name not in _STOCK
                access: Access = "whole" if stream.name == ENTRIES else "few" if selects else "in order"
                blocks[stream.layer, stream.name] = lay(kind, own, count, host=host, access=access)
        keep = selects and not attachment.attender.method.angles.dynamic and (on_host or device.type == "cpu")
        # Keys that all have to be rotated, or read, for every token are dequantised once for a cache.
        to = _tier(tier, device, on_host, needed)
        directory = attachment.report.kv_dir if to == "disk" else None
        return blocks | read_back(streams, parts, segments, device, keep=keep, tier=to, directory=directory)

    needed = sum(kind.nbytes(count) for kind, count in zip(kinds, counts, strict=True))
    on_host = stays_on_host(tier, device, needed)
    try:
        return all_of_them(on_host)
    except (MemoryError, RuntimeError) as error:
        if on_host or tier != "auto":
            raise
        new_spill().after_refusal(error, "device", device)  # raises what is about something else than memory
    return all_of_them(True)


def _fill_store(
    attachment: Attachment,
    layer: StoreLayer,
    number: int,
    rope: Any,
    blocks: Mapping[tuple[int, str], TokenBlock],
    counts: Mapping[int, int],
    state: State,
    tokens: int,
) -> None:
    attender, store = attachment.attender, layer.store
    names = [_stream_name(n) for n in (*range(attender.stored_rotations), None)]
    store.adopt([blocks[number, name] for name in names], tokens)
    store.index = index = attender.new_index(number, rope)
    own = {
        key.partition(".")[2]: values for key, values in state.counts.items() if key.partition(".")[0] == str(number)
    }
    if not _savable(index):
        if own:
            raise ValueError(f"layer {number} chooses no keys by an index")
        return
    inputs: list[Tensor] = []
    while (x := state.tensors.get(f"{number}.tail.{len(inputs)}")) is not None:
        inputs.append(x.to(blocks[number, _VALUES].kind.device))
    laid = blocks.get((number, ENTRIES))
    entries = None if laid is None else Entries(laid, counts[number])
    index.restore(SavedIndex(None, tuple(inputs), own), entries, tokens)


def _fill_stock(
    layer: DynamicLayer,
    number: int,
    blocks: Mapping[tuple[int, str], TokenBlock],
    state: State,
    tokens: int,
    device: torch.device,
) -> None:
    if isinstance(layer, DynamicSlidingWindowLayer):
        if f"{number}.keys" not in state.tensors:
            return
        keys, values = (state.tensors[f"{number}.{name}"].to(device) for name in ("keys", "values"))
    elif (number, _STOCK[0]) in blocks:
        keys, values = (blocks[number, name].tensor[:, :, :tokens] for name in _STOCK)
    else:
        return
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    if isinstance(layer, DynamicSlidingWindowLayer):
        (layer.cumulative_length,) = state.counts[f"{number}.seen"]


def _add_coded(streams: CacheStreams, layer: int, store: KVStore, coder: Coder, begin: int, tokens: int) -> None:
    for n in (*range(store.rotations), None):
        new, name = store.take(n, begin, store.length), _stream_name(n)
        for own, tensor, room in coder.coded(layer, name, new, tokens - store.length):
            streams.add(layer, own, tensor, room, _name(new.dtype) if own == name else "")


def _stream_name(rotation: int | None) -> str:
    return _VALUES if rotation is None else f"keys {rotation}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tier(tier: KVTier, device: torch.device, on_host: bool, needed: int) -> Tier:
    """Where a cache has the memory for what is dequantised for it."""
    if tier != "auto":
        return tier
    return new_spill().with_room("host" if on_host and device.type != "cpu" else "device", device, needed)


def _savable(index: object) -> TypeGuard[SavableIndex]:
    """Whether an index has something to save.

    Raises:
        DocumentError: it has, and does not say how.
    """
    if isinstance(index, SavableIndex):
        return True
    if isinstance(index, Selector) and type(index).extend is not Selector.extend:
        raise DocumentError(
            f"{type(index).__name__} keeps more than keys and values of a text and does not implement "
            "longspan.choosing.saved.SavableIndex; take a method of longspan.METHODS"
        )
    return False


def _own(x: Tensor) -> Tensor:
    return x.detach().cpu().contiguous().clone()
