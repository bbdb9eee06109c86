"""All methods by name: longspan's own, and those that installed packages name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from longspan.errors import LongspanError
from longspan.methods.base import Method

GROUP = "longspan.methods"


class KnownMethods(MutableMapping[str, type[Method]]):
    """Classes of methods by name; those of other packages follow longspan's own.

    A package names its methods by entry points of the group ``longspan.methods``. These are loaded when the methods
    are first looked at, and not with longspan, which such a package imports.

    Args:
        own: longspan's methods.

    Raises:
        LongspanError: a method of a package cannot be loaded, is none, or has another name or one that is taken.
    """

    def __init__(self, own: Iterable[type[Method]]) -> None:
        self._own = {method.name: method for method in own}

    @cached_property
    def _all(self) -> dict[str, type[Method]]:
        found = dict(self._own)
        for entry in entry_points(group=GROUP):
            if entry.name in found:
                raise LongspanError(f"{_described(entry)} has the name of another method; {_out(entry)}")
            found[entry.name] = _loaded(entry)
        # A package may have looked at the methods, and added some, as it was imported.
        known: dict[str, type[Method]] = vars(self).get("_all", found)
        return known

    def __getitem__(self, name: str) -> type[Method]:
        return self._all[name]

    def __setitem__(self, name: str, method: type[Method]) -> None:
        self._all[name] = method

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)

    def __or__(self, others: Mapping[str, type[Method]]) -> dict[str, type[Method]]:
        return {**self, **others}

    def __ror__(self, others: Mapping[str, type[Method]]) -> dict[str, type[Method]]:
        return {**others, **self}

    def copy(self) -> dict[str, type[Method]]:
        return dict(self._all)

    __copy__ = copy


def package_of(name: str) -> tuple[str, str] | None:
    """The package that names a method, and its version; None for longspan's own methods."""
    dists = (entry.dist for entry in entry_points(group=GROUP, name=name))
    return next(((dist.name, dist.version) for dist in dists if dist is not None), None)


def _loaded(entry: EntryPoint) -> type[Method]:
    try:
        method = entry.load()
    except Exception as error:  # whatever a package raises as it is imported
        raise LongspanError(
            f"{_described(entry)} cannot be loaded: {type(error).__name__}: {error}; {_out(entry)}"
        ) from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise LongspanError(f"{_described(entry)}, {entry.value}, is no subclass of longspan.Method; {_out(entry)}")
    if method.name != entry.name:
        raise LongspanError(f"{_described(entry)} has the name {method.name!r} in its class; {_out(entry)}")
    return method


def _described(entry: EntryPoint) -> str:
    return f"the method {entry.name!r} of {_package(entry)}"


def _out(entry: EntryPoint) -> str:
    return f"correct its entry point in the group {GROUP}, or uninstall {_package(entry)}"


def _package(entry: EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else f"the package {entry.dist.name}"
