"""The cache that an extended model keeps: longspan's stores for attached layers, transformers' own for the others."""

from __future__ import annotations

from copy import deepcopy
from operator import index
from typing import Any, get_args
from weakref import ReferenceType

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from longspan.attend import Attender
from longspan.errors import CacheError, LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.calls import Calls
from longspan.hf.forward import Forward
from longspan.hf.position_ids import Numbering
from longspan.hf.stock import has_forgotten, keeps_a_state, keeps_nothing, stock_tensors
from longspan.hf.tiers import refuse_offloaded
from longspan.hf.untraced import untraced
from longspan.memory import KVStore, Tier


class StoreLayer(CacheLayerMixin):
    """One attached layer. ``update`` hands keys and values on; attention appends them to ``store``."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, store: KVStore, selects: bool) -> None:
        """``selects``: whether the method reads chosen keys alone, so that a GPU can do with those."""
        super().__init__()
        self.store, self.selects = store, selects

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate nothing for keys ``[B, Hkv, T, D]`` and values ``[B, Hkv, T, Dv]``: the store does that."""
        self.keys, self.values = key_states.new_empty(0), value_states.new_empty(0)  # Llama 3.2 asks how many there are
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys ``[B, Hkv, T, D]`` and values ``[B, Hkv, T, Dv]`` as they are."""
        # Here too and not at ``extend`` alone, since the model may have been moved after that.
        refuse_offloaded(self.store.tier, key_states.device, self.selects)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, *args: Any) -> int:
        return self.store.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.store.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-n`` tokens."""
        self.store.crop(-tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep rows ``beam_idx`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""
        self.store.select(beam_idx)

    def reset(self) -> None:
        self.store.reset()

    def offload(self) -> None:
        raise CacheError(
            "transformers cannot offload longspan's cache; call longspan.extend with kv_tier='host' or 'disk'"
        )

    prefetch = offload


class LongspanCache(Cache):
    """The key-value cache of a model extended by longspan; make one with ``longspan.new_cache(model)``.

    Attributes:
        owner: the model it belongs to, as a weak reference.
        attender: the method it was filled under.
        padding: padding tokens at the start of each row, or None while empty.
        running: the forward that fills it at the moment; None between forwards.
        numbering: which numbering the ``position_ids`` of its tokens followed, if they showed one.
        calls: the calls that filled it, if what is computed of a token depends on later tokens.
        broken: whether a forward that filled it broke off, which shows in the lengths of layers that keep tokens alone.
    """

    def __init__(self, owner: ReferenceType[Any], attender: Attender, layers: list[Any]) -> None:
        super().__init__(layers=layers)
        self.owner = owner
        self.attender = attender
        self.padding: tuple[int, ...] | None = None
        self.running: Forward | None = None
        self.numbering: Numbering | None = None
        self.calls = Calls(attender.method, attender.window)
        self.broken = False

    @property
    def unfinished(self) -> bool:
        """Whether a forward that filled it broke off, or has not ended."""
        return self.broken or (self.running is not None and self.running.fits)

    @property
    def stores(self) -> list[KVStore]:
        """Those of the attached layers."""
        return [layer.store for layer in self.layers if isinstance(layer, StoreLayer)]

    @untraced
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take in a layer's keys and values, as its model's attention asks for.

        Args:
            key_states, value_states: ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``.

        Returns:
            The same of an attached layer; of another layer the keys and values that transformers' own cache returns.

        Raises:
            CacheError: that model is not extended: keys of attached layers come and are kept by longspan's attention.
        """
        if self.running is None or self.running.over:
            self.broken = True  # earlier layers that keep a state have taken the tokens in
            raise CacheError(
                "longspan's cache was passed to a model that is not extended, or to another one; extend this model and "
                f"pass longspan.new_cache(model), or leave {CACHE_ARGUMENT} out"
            )
        found: tuple[Tensor, Tensor] = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        return found

    get_seq_length = untraced(Cache.get_seq_length)
    get_mask_sizes = untraced(Cache.get_mask_sizes)
    max_cache_len = -1  # no limit; PEFT's prefix tuning asks before it passes a cache of its own, which is refused

    def croppable(self, length: int) -> int:
        """The most tokens, at most ``length``, that ``crop`` can leave as they are, computing none of them again."""
        now = self.get_seq_length()
        before = None
        while length != before and length < now:
            before = length
            length = self.calls.unchanged(length, self.padding or ())
            for store in self.stores:
                length = store.croppable(length)
        return 0 if length < now and self._stuck(length) is not None else min(length, now)

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-n`` tokens of every layer; a positive ``n``, as transformers had it, is the length to keep.

        Tokens that are left and chose keys together with dropped ones are computed again: what remains is the same
        whatever was dropped.

        Raises:
            CacheError: a layer has not kept what it would go back to, or inputs to compute again; nothing is dropped.
        """
        tokens_to_remove = index(tokens_to_remove)  # assisted decoding of transformers before 5.18 passes a tensor
        lengths = self._lengths()
        most = max(n or 0 for n in lengths)
        length = tokens_to_remove if tokens_to_remove > 0 else max(most + tokens_to_remove, 0)
        if length >= most:
            self._drop(length)
            return
        even = len({n for n in lengths if n is not None}) == 1  # else no forward goes on from here
        kept = self.calls.unchanged(length, self.padding or ()) if even else length
        again = self.calls.again(self, kept, length) if kept < length else None
        padding, numbering = self.padding or (), self.numbering
        self._drop(kept)
        if again is not None:
            self.numbering = numbering
            again(padding)

    def _drop(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        if length == 0:
            self.reset()
            return
        lengths = self._lengths()
        most = max(n or 0 for n in lengths)
        if length < most and (stuck := self._stuck(length)) is not None:
            raise CacheError(
                f"{most - length} tokens cannot be dropped: layer {stuck} is attended by the model itself, which keeps "
                "only its last tokens; read the text again with longspan.new_cache(model)"
            )
        # The attached layers first: their indices raise before anything is dropped.
        for n in sorted(range(len(self.layers)), key=lambda n: not isinstance(self.layers[n], StoreLayer)):
            held = lengths[n]
            count = min(length - (most if held is None else held), 0)
            if count or getattr(self.layers[n], "record_past", False):
                self.layers[n].crop(count)
        self.calls.crop(length)
        if self.padding is not None:  # a row of which padding alone is left may go on as it likes
            self.padding = tuple(min(pad, length) for pad in self.padding)

    def _lengths(self) -> list[int | None]:
        """Tokens in each layer; None if it keeps a state alone, such as a convolution's, or no text runs it."""
        tokens = [isinstance(x, (StoreLayer, DynamicLayer)) and not keeps_nothing(x) for x in self.layers]
        return [x.get_seq_length() if has else None for x, has in zip(self.layers, tokens, strict=True)]

    def _stuck(self, length: int) -> int | None:
        """The first of transformers' own layers that has not kept what it held after ``length`` tokens."""
        lengths = self._lengths()
        most = max(n or 0 for n in lengths)
        for n, (layer, held) in enumerate(zip(self.layers, lengths, strict=True)):
            if keeps_a_state(layer):
                stuck = self.unfinished or has_forgotten(layer, most - length, most)
            elif isinstance(layer, DynamicSlidingWindowLayer) and held is not None and held > length:
                stuck = layer.keys.shape[-2] - (held - length) < min(layer.sliding_window - 1, length)
            else:
                continue
            if stuck:
                return n
        return None

    def refuse_uneven(self, depth: int | None = None) -> None:
        """Raise ``CacheError`` unless the first ``depth`` layers, or all, hold equally many tokens."""
        if self.broken and any(map(keeps_a_state, self.layers)):
            raise CacheError(
                "a forward was interrupted, and layers that keep a state instead of tokens may have read some of its "
                "tokens; call cache.reset() to drop all tokens, or pass longspan.new_cache(model)"
            )
        lengths = {n for n in self._lengths()[:depth] if n is not None}
        if len(lengths) > 1:
            least = min(lengths)
            back = f"cache.crop({least})" if least and self._stuck(least) is None else "cache.reset()"
            raise CacheError(
                f"the layers of the cache hold {least} to {max(lengths)} tokens, since a forward was interrupted; "
                f"{back} forgets its tokens, or pass longspan.new_cache(model)"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> LongspanCache:
        """A cache of its own with the same tokens, for the same model: to go on from one prompt several times."""
        for x in (x for layer in self.layers for x in stock_tensors(layer) if x is not None):
            # A tensor is copied with all of its memory, and of one in a document's files not all can be read; one with
            # a gradient is not copied at all.
            memo[id(x)] = x.clone()
        twin = LongspanCache(self.owner, self.attender, deepcopy(self.layers, memo))
        twin.padding, twin.numbering, twin.calls = self.padding, self.numbering, self.calls.copy()
        twin.broken = self.unfinished
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise CacheError(
            "longspan's cache cannot be pickled, since it belongs to one extended model in one process; copy.deepcopy "
            "copies it there"
        )

    @property
    def nbytes(self) -> int:
        """Bytes allocated by the attached layers, in all tiers."""
        return sum(self.bytes_by_tier.values())

    @property
    def bytes_by_tier(self) -> dict[Tier, int]:
        """Bytes allocated by the attached layers on the device, in host memory and on disk."""
        by_store = [store.bytes_by_tier for store in self.stores]
        return {tier: sum(sizes[tier] for sizes in by_store) for tier in get_args(Tier)}

    def accept(self, padding: tuple[int, ...], mask_given: bool, length: int) -> None:
        """Note the padding of a forward; arguments and errors are those of ``refuse_padding``."""
        self.refuse_padding(padding, mask_given, length)
        self.padding = padding  # a row that has been nothing but padding so far may go on being that

    def refuse_padding(self, padding: tuple[int, ...], mask_given: bool, length: int) -> None:
        """Raise ``CacheError`` if the padding of a forward is not that of the rows held.

        Args:
            padding: padding tokens at the start of each row, those in the cache counted in.
            mask_given: whether the caller passed an attention mask, for the message.
            length: tokens in the layer that asks.
        """
        if self.padding is None or length == 0:
            return
        if len(padding) != len(self.padding):
            raise CacheError(
                f"the cache holds {len(self.padding)} rows and the input has {len(padding)}; "
                "start a new cache, or use batch_repeat_interleave or batch_select_indices"
            )
        if not all(new == old or new > old == length for new, old in zip(padding, self.padding, strict=True)):
            hint = "the padding in attention_mask changed" if mask_given else "no attention_mask was passed"
            raise CacheError(
                f"the cache was filled with left padding {list(self.padding)} and {hint}; pass the attention_mask of "
                "all tokens, those in the cache included"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep rows ``beam_idx`` of the batch, in that order: ``[B]`` int64, of the new ``B``."""
        rows = self._numbers(beam_idx)
        super().reorder_cache(rows)
        self.calls.select(rows)
        if self.padding is not None:
            self.padding = tuple(self.padding[row] for row in rows.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row ``repeats`` times, copies side by side."""
        if repeats < 1:
            raise LongspanError(f"repeats must be at least 1, not {repeats}")
        if self.padding is not None:
            self.reorder_cache(torch.arange(len(self.padding)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows by their numbers, ``[B]`` int64 of the new ``B``, or by a bool mask ``[B]`` of the old one."""
        self.reorder_cache(indices)  # which layers that keep a state have too

    def reset(self) -> None:
        self.padding, self.numbering, self.broken = None, None, False
        self.calls.crop(0)
        if self.running is not None:  # one that an interrupt ended
            self.running.fits = False
        # First, since transformers sets what a state, or before 5.18 a layer, keeps to zero, for as many rows and
        # tokens as before, and not at all outside of the inference mode that it was made in.
        for layer in self.layers:
            if isinstance(layer, DynamicLayer):
                layer.keys, layer.values, layer.is_initialized = None, None, False
            if keeps_a_state(layer):
                for each in (layer.conv_states, layer.recurrent_states):
                    each.update(dict.fromkeys(each))
                for made in (layer.is_conv_states_initialized, layer.is_recurrent_states_initialized):
                    made.update(dict.fromkeys(made, False))
        super().reset()

    def _numbers(self, rows: Tensor) -> Tensor:
        """Rows as numbers, which stores take; raises before a layer is changed if the cache has no such rows."""
        held = None if self.padding is None else len(self.padding)
        numbers = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        short = rows.dtype == torch.bool and len(rows) != held
        if held is not None and (short or not all(0 <= row < held for row in numbers.tolist())):
            raise CacheError(f"the cache holds {held} rows, but rows {rows.tolist()} were requested")
        return numbers
