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
    """A call's arguments, with a cache of the later name under that of this transformers, which would lose it."""
    if CACHE_ARGUMENT != "cache" and (cache := arguments.pop("cache", None)) is not None:
        if arguments.get(CACHE_ARGUMENT) is not None:
            raise CacheError(f"the call has a cache twice, as cache and as {CACHE_ARGUMENT}; leave one out")
        arguments[CACHE_ARGUMENT] = cache
    return arguments


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """The cache among a call's arguments, by its name in this transformers or by the earlier one; None without."""
    found = arguments.get(CACHE_ARGUMENT)
    return arguments.get("past_key_values") if found is None else found


def put_cache(arguments: dict[str, Any], cache: Any, names: Collection[str]) -> None:
    """Give a call its cache under the name that it takes alone: remote code may have kept the earlier one."""
    arguments.pop("past_key_values", None)
    arguments[CACHE_ARGUMENT if CACHE_ARGUMENT in names else "past_key_values"] = cache
