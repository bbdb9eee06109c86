"""Calls of a model that are decoding steps and ask for nothing but logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from longspan.hf.argument import given_cache
from longspan.hf.cache import LongspanCache

_PLAIN = {"input_ids", "attention_mask", "position_ids", "cache_position", "cache", "past_key_values", "use_cache"}
_PLAIN |= {"return_dict", "logits_to_keep"}  # what a decoding step may be given
_PLAIN.add("tokenizer")  # of generate, for stop strings, which hands it on to the model
_TRUE = "use_cache", "return_dict"  # unless they are left out
_MORE = "output_hidden_states", "output_attentions"  # that a config may ask for


def stepped_cache(arguments: Mapping[str, Any], config: Any) -> LongspanCache | None:
    """The cache of a call, by the model's arguments and config, that is such a step; None for any other.

    A step has one token in each row, ``input_ids`` ``[B, 1]``, and a cache that holds tokens.
    """
    ids, cache, mask = arguments.get("input_ids"), given_cache(arguments), arguments.get("attention_mask")
    others = [x for name, x in arguments.items() if name not in _PLAIN and x is not None and x is not False]
    one = isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] == 1
    one = one and (mask is None or (isinstance(mask, Tensor) and mask.dim() == 2))
    plain = not others and False not in (arguments.get(name, True) for name in _TRUE)
    plain = plain and not any(getattr(config, name, False) for name in _MORE)
    return cache if one and plain and isinstance(cache, LongspanCache) and cache.get_seq_length() else None
