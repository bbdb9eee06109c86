"""Several caches in one forward, which computes the next token of each; and who fills a cache at the moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from longspan.errors import CacheError
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.hf.forward import Forward
from longspan.hf.position_ids import Numbering
from longspan.hf.stock import keeps_nothing
from longspan.hf.threads import calls_of
from longspan.hf.untraced import untraced
from longspan.memory import JoinedStores


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise CacheError("joined caches take in their next tokens and nothing else; change each of them by itself")


class JoinedLayer(CacheLayerMixin):
    """One attached layer of several caches. ``update`` hands keys and values on; attention appends them to ``store``.

    Args:
        layers: those of the caches.
    """

    is_croppable = False
    supports_early_init = False

    def __init__(self, layers: Sequence[StoreLayer]) -> None:
        super().__init__()
        self._layers, self.store = tuple(layers), JoinedStores([layer.store for layer in layers])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate nothing for keys ``[B, Hkv, 1, D]`` and values ``[B, Hkv, 1, Dv]``: the stores do that."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys ``[B, Hkv, 1, D]`` and values ``[B, Hkv, 1, Dv]`` as they are."""
        for layer in self._layers:
            layer.update(key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, *args: Any) -> int:
        return self.store.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.store.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    crop = reorder_cache = reset = offload = prefetch = batch_repeat_interleave = batch_select_indices = _refuse


class JoinedCache(Cache):
    """Caches of one row each, whose next tokens one forward takes in.

    Row ``n`` of ``input_ids`` ``[B, 1]`` goes to the ``n``-th of ``B`` caches, after the tokens that this one holds.
    The forward is given neither an attention mask nor positions. If it fails, each cache is as after a failed forward
    of its own.

    Attributes:
        members: the caches.
        padding: as that of a ``LongspanCache``, of all rows.

    Raises:
        CacheError: one of them cannot be joined; with the reason.
    """

    numbering: Numbering | None = None

    def __init__(self, members: Sequence[LongspanCache]) -> None:
        if len(set(map(id, members))) < len(members) or len({len(one.layers) for one in members}) != 1:
            raise CacheError("different caches of one model can be joined, each of them once")
        for n, one in enumerate(members):
            if (reason := _reason(one)) is not None:
                raise CacheError(f"cache {n} of {len(members)} cannot be joined with the others: {reason}")
        self.members, self.padding = tuple(members), (0,) * len(members)
        columns = zip(*(one.layers for one in members), strict=True)
        layers = [JoinedLayer(column) if isinstance(column[0], StoreLayer) else column[0] for column in columns]
        super().__init__(layers=layers)

    @untraced
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Hand a layer's keys ``[B, Hkv, 1, D]`` and values ``[B, Hkv, 1, Dv]`` on, as attention asks for.

        Raises:
            CacheError: the model is not extended; or the layer is none that the caches were joined in.
        """
        if not isinstance(self.layers[layer_idx], JoinedLayer):
            _refuse()
        if any(one.running is None or one.running.over for one in self.members):
            raise CacheError("joined caches were passed to a model that is not extended, or to another one")
        found: tuple[Tensor, Tensor] = self.layers[layer_idx].update(key_states, value_states)
        return found

    get_seq_length = untraced(Cache.get_seq_length)
    get_mask_sizes = untraced(Cache.get_mask_sizes)

    def refuse_uneven(self, depth: int | None = None) -> None:
        """Raise ``CacheError`` unless the first ``depth`` layers of each cache, or all, hold equally many tokens."""
        for one in self.members:
            one.refuse_uneven(depth)

    def give_positions(self, kwargs: dict[str, Any], tokens: Tensor, names: Collection[str]) -> None:
        """Put each row's own position into a forward's arguments, for all that a model derives from it but rotation.

        Args:
            kwargs: changed.
            tokens: ``[B, T]`` ids or ``[B, T, ...]`` embeddings.
            names: of the arguments that the forward takes.

        Raises:
            CacheError: it is not a forward of one token for each cache, without padding and positions of its own.
        """
        if tuple(tokens.shape[:2]) != (len(self.members), 1):
            raise CacheError(
                f"{len(self.members)} joined caches take in one token each, not {tokens.shape[1]} of {tokens.shape[0]} "
                "rows"
            )
        if kwargs.get("attention_mask") is not None or kwargs.get("position_ids") is not None:
            raise CacheError("joined caches have their own positions: leave attention_mask and position_ids out")
        if (reason := _unnumbered(names)) is not None:
            raise CacheError(f"caches cannot be joined: {reason}")
        places = [[one.get_seq_length()] for one in self.members]
        kwargs["position_ids"] = torch.tensor(places, device=tokens.device)


def unjoinable(cache: LongspanCache, names: Collection[str]) -> str | None:
    """The reason why no forward of a model takes in tokens of several caches, or None.

    Args:
        cache: one of the model's, empty or not.
        names: of the arguments that its decoder's forward takes.
    """
    return _stock_reason(cache) or _unnumbered(names)


def _unnumbered(names: Collection[str]) -> str | None:
    return None if "position_ids" in names else "the model takes no position_ids, which differ between their rows"


def _stock_reason(cache: LongspanCache) -> str | None:
    for n, layer in enumerate(cache.layers):
        if not isinstance(layer, StoreLayer) and not keeps_nothing(layer):
            return f"layer {n} is attended by the model itself, which takes all rows of a batch for equally long"
    return None


def _reason(cache: LongspanCache) -> str | None:
    """The reason why tokens of a cache cannot be taken in together with those of others."""
    if cache.padding is None or not cache.get_seq_length():
        return "it is empty"
    if cache.padding != (0,):
        return f"it holds rows that begin with {list(cache.padding)} tokens of padding, and not one row without"
    return _stock_reason(cache)


def members_of(cache: LongspanCache | JoinedCache) -> tuple[LongspanCache, ...]:
    """The caches that a forward fills which is given ``cache``."""
    return cache.members if isinstance(cache, JoinedCache) else (cache,)


def take(cache: LongspanCache | JoinedCache, running: Forward, decoder: nn.Module) -> None:
    """A forward is about to fill a cache; others are not called meanwhile.

    Raises:
        CacheError: another forward is filling it.
    """
    for one in members_of(cache):
        other = one.running
        if other is not None and calls_of(decoder, other.thread) > (other.thread == running.thread):
            raise CacheError(
                "another forward is filling this cache; give each thread, and each call inside of another, its own "
                "longspan.new_cache(model)"
            )
    for one in members_of(cache):
        one.broken = one.unfinished  # an interrupt ended the other one
        one.running = running
    running.cache = cache


def release(running: Forward, failed: bool) -> None:
    """A forward ended and fills its cache no longer."""
    cache = cast(LongspanCache | JoinedCache | None, running.cache)
    for one in () if cache is None else members_of(cache):
        if one.running is running:
            one.running = None
            one.broken = one.broken or (running.fits and failed)
