"""Calls of an extended model outside of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def untraced(call: Callable[P, R]) -> Callable[P, R]:
    """Hide a function from ``torch.compile``: the graph breaks there, and the code around it is compiled.

    Calls outside of a compiled model go straight to the function, which takes less time than entering and leaving
    what keeps it from being traced.
    """
    kept_out: Callable[P, R] = torch.compiler.disable(call)

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling():
            return kept_out(*args, **kwargs)
        return call(*args, **kwargs)

    # Compilations are told apart and counted by code objects, so each function gets one of its own.
    run.__code__ = run.__code__.replace(co_name=call.__name__)
    return wraps(call)(run)
