"""Lengths that the parameters of a method are set for."""

from __future__ import annotations

from longspan.methods.base import Method
from longspan.methods.scaling import Full
from longspan.methods.self_extend import SelfExtend
from longspan.methods.string import String
from longspan.rope import NTK, PI, YaRN


def longest(method: Method, window: int) -> int | None:
    """The longest text in tokens that the parameters of a method are set for; None where they set no limit.

    Positions beyond it leave the range that the model was trained on. Full attention without scaled angles has no limit
    here either: its results beyond the window are the baseline of every comparison.

    Args:
        method: resolved.
        window: the trained one, in tokens.
    """
    angles = method.angles
    if isinstance(method, Full):
        if isinstance(angles, (PI, NTK)):
            assert angles.scale is not None
            return round(angles.scale * window)
        if isinstance(angles, YaRN):
            assert angles.factor is not None
            return round(angles.factor * window)
    if isinstance(method, SelfExtend):
        assert method.group is not None and method.neighbors is not None
        return method.group * (window - method.neighbors + method.neighbors // method.group)
    if isinstance(method, String):
        assert method.shift is not None and method.local is not None
        return window + method.shift - method.local
    return None
