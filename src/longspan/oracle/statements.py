"""The registry of the oracle's statements: one per selection and position map, by the name of its class.

The oracle imports neither selections nor position maps. ``states`` registers the statement of a new one, in any module
of this folder. ``laid`` combines the statements of any selection and any position map.
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
    """The inputs of a selection, in one call.

    Attributes:
        q: ``[B, H, N, D]``, unrotated.
        k: ``[B, Hkv, N, D]``, unrotated.
        v: ``[B, Hkv, N, Dv]``.
        rope: the layer's rotation.
        scale: the layer's factor on scores.
    """

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
    """The keys that queries keep.

    Attributes:
        always: ``[N, N]`` bool, the keys kept without a choice.
        borders: ``[N]`` int64, the first of each query's last tokens in ``always``.
        chosen: ``[B, H, N, N]`` bool, the chosen keys of each head.
    """

    always: Tensor
    borders: Tensor
    chosen: Tensor

    @property
    def keep(self) -> Tensor:
        return self.always | self.chosen


def states(name: str) -> Callable[[_Stated], _Stated]:
    """Register the statement of the class with this name.

    The statement of a selection that chooses keys is a class with two functions: ``chosen(selection, text)`` returns
    ``[B, H, N, N]`` bool, and ``always(selection, n)`` returns ``[n, n]`` bool and the borders ``[n]`` int64. The
    statement of a position map is a function ``(positions, kept)`` that returns ``rel``, ``[B, H, N, N]`` or ``[N, N]``
    int64.
    """

    def register(stated: _Stated) -> _Stated:
        _STATED[name] = stated
        return stated

    return register


def stated(part: Any) -> Any:
    """The statement of a selection or a position map, by its class or the nearest base class with a statement."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        import_module(module.name)
    return next(_STATED[kind.__name__] for kind in type(part).__mro__ if kind.__name__ in _STATED)


def chosen(selection: Any, text: Inputs) -> Tensor:
    """The keys that each query chooses: ``[B, H, N, N]`` bool."""
    found: Tensor = stated(selection).chosen(selection, text)
    return found


def laid(selection: Any, positions: Any, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """``keep`` and ``rel``, ``[B, H, N, N]``, of a selection that chose ``chosen``, under a position map."""
    always, borders = stated(selection).always(selection, chosen.shape[-1])
    kept = KeptMask(always, borders, chosen)
    return kept.keep, stated(positions)(positions, kept).expand_as(chosen)


def marked(units: Tensor, n: int, size: int = 1) -> Tensor:
    """Convert units ``[..., m]`` of ``size`` tokens, padded with -1, to a mask of ``n`` tokens, ``[..., N]`` bool."""
    out = torch.zeros(*units.shape[:-1], n, dtype=torch.bool)
    for m in range(units.shape[-1]):
        out |= torch.arange(n) // size == units[..., m, None]
    return out
