"""Which function states a selection, and which a position map, by the name of its class.

The oracle imports neither. What states a new one is registered by ``states``, in any module of this folder. ``laid``
puts the two axes together, whichever they are.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

from longspan.rope import Rope

_STATED: dict[str, Any] = {}
_Stated = TypeVar("_Stated")


@dataclass(frozen=True)
class Inputs:
    """What a selection sees, in one call: ``q`` ``[B, H, N, D]``, ``k`` and ``v`` ``[B, Hkv, N, D]``, unrotated."""

    q: Tensor
    k: Tensor
    v: Tensor
    rope: Rope
    scale: float

    @property
    def length(self) -> int:
        return self.q.shape[2]


@dataclass(frozen=True)
class KeptMask:
    """What queries keep.

    Attributes:
        always: ``[N, N]`` bool, whatever is chosen.
        borders: ``[N]`` int64, the first of the last tokens that are kept so.
        chosen: ``[B, H, N, N]`` bool, what each head's queries chose besides.
    """

    always: Tensor
    borders: Tensor
    chosen: Tensor

    @property
    def keep(self) -> Tensor:
        return self.always | self.chosen


def states(name: str) -> Callable[[_Stated], _Stated]:
    """Register what states the class of that name.

    Of a selection that chooses it is a class with two functions: ``chosen(selection, text)``, ``[B, H, N, N]`` bool,
    and ``always(selection, n)``, ``[n, n]`` bool and the borders ``[n]``; of a position map it is a function
    ``(positions, kept)`` that gives ``rel``, ``[B, H, N, N]`` or ``[N, N]`` int64.
    """

    def register(stated: _Stated) -> _Stated:
        _STATED[name] = stated
        return stated

    return register


def stated(part: Any) -> Any:
    """What states a selection or a position map, by its class or the nearest one that it derives from."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        import_module(module.name)
    return next(_STATED[kind.__name__] for kind in type(part).__mro__ if kind.__name__ in _STATED)


def chosen(selection: Any, text: Inputs) -> Tensor:
    """``[B, H, N, N]`` bool: what each query chooses."""
    found: Tensor = stated(selection).chosen(selection, text)
    return found


def laid(selection: Any, positions: Any, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel`` ``[B, H, N, N]`` of a selection that chose ``chosen``, seen by a position map."""
    always, borders = stated(selection).always(selection, chosen.shape[-1])
    kept = KeptMask(always, borders, chosen)
    return kept.keep, stated(positions)(positions, kept).expand_as(chosen)


def marked(units: Tensor, n: int, size: int = 1) -> Tensor:
    """Units ``[..., m]`` of ``size`` tokens, -1 for none, as tokens ``[..., n]`` bool."""
    out = torch.zeros(*units.shape[:-1], n, dtype=torch.bool)
    for m in range(units.shape[-1]):
        out |= torch.arange(n) // size == units[..., m, None]
    return out
