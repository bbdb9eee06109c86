"""A kernel's values derived from arguments that a call's layers share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


def give(derived: dict[Any, Any], key: Hashable, value: object) -> None:
    """Have ``once`` find this value, which depends on no sources."""
    derived[key] = (), value


def once(derived: dict[Any, Any], key: Hashable, derive: Callable[[], T], *sources: object) -> T:
    """The last result of ``derive`` under this key if it was derived from these very objects, else a new one."""
    found = derived.get(key)
    if found is None or any(a is not b for a, b in zip(found[0], sources, strict=True)):
        found = derived[key] = sources, derive()
    return cast(T, found[1])
