"""The argument that gives a model its cache: ``cache`` since transformers 5.24, ``past_key_values`` before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from transformers.modeling_outputs import CausalLMOutputWithPast

from longspan.errors import CacheError

_NAMES = "cache", "past_key_values"

CACHE_ARGUMENT = next(name for name in _NAMES if name in {field.name for field in fields(CausalLMOutputWithPast)})


def named_here(arguments: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments, with a cache of the other name under that of this transformers, which may lose it."""
    cache, earlier = arguments.get("cache"), arguments.get("past_key_values")
    if cache is not None and earlier is not None:
        kinds = f"a {type(cache).__name__} as cache and a {type(earlier).__name__} as past_key_values"
        raise CacheError(f"the call has two caches, {kinds}; leave one out (a wrapper, as PEFT's, may have added it)")
    if CACHE_ARGUMENT != "cache" and arguments.pop("cache", None) is not None:
        arguments[CACHE_ARGUMENT] = cache
    elif earlier is not None and CACHE_ARGUMENT == "cache":
        arguments.pop("cache", None)  # None, which transformers would take for the cache
    return arguments


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """The cache among a call's arguments, by its name in this transformers or by the earlier one; None without."""
    found = arguments.get(CACHE_ARGUMENT)
    return arguments.get("past_key_values") if found is None else found


def put_cache(arguments: dict[str, Any], cache: Any, names: Collection[str]) -> None:
    """Give a call its cache under the name that it takes alone: remote code may have kept the earlier one."""
    arguments.pop("past_key_values", None)
    arguments[CACHE_ARGUMENT if CACHE_ARGUMENT in names else "past_key_values"] = cache
