"""Rows in ``--model_args``, written as ``longspan eval`` writes them, and how far they can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longspan.errors import LongspanError
from longspan.methods import Method
from longspan.methods.parse import split_spec
from longspan_eval.spec import MethodSpec, parse_spec

AUTO = "auto"
UNLIMITED = 2**31 - 1  # given to lm-eval if it needs a number of tokens


def row_of(method: str, settings: Mapping[str, Any]) -> MethodSpec:
    """The row of ``method=longheads:score=bounds,num_chunks=8`` or of ``method=longheads,score=bounds,num_chunks=8``.

    lm-eval takes an argument apart at its commas, so what follows the first one arrives as arguments of their own; it
    also turns what looks like a number, true, false or none into one.

    Args:
        method: a name with or without settings after a colon.
        settings: the other settings by name, values as text or as lm-eval understood them.

    Raises:
        LongspanError: the method, a parameter or a value is wrong, a setting comes twice, or there is no such
            calibration.
    """
    name, given = split_spec(method)
    for key, value in settings.items():
        plain = key.replace("-", "_")
        if plain in given:
            raise LongspanError(f"{name}: {plain} is set twice")
        given[plain] = _text(value)
    return parse_spec(name + (":" + ",".join(f"{key}={value}" for key, value in given.items()) if given else ""))


def told(row: MethodSpec, length: int | None) -> MethodSpec:
    """The row, told how far it has to reach.

    Raises:
        LongspanError: it has to know, and neither ``length`` nor a parameter says so.
    """
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise LongspanError(f"length must be a number of tokens, at least 1, not {length!r}")
    if row.method is None:
        return row
    if length is not None:
        return replace(row, method=row.method.reaching(length))
    if row.method.reaching(1) != row.method:
        raise LongspanError(
            f"{row.label} must know the longest text: pass length=TOKENS, for the longest prompt with its "
            "answer, or set its scale, factor, group or target_length yourself"
        )
    return row


def row_by_row(method: Method) -> bool:
    """Whether what is padded on the right of a row without a mask, as lm-eval pads for likelihoods, would change it.

    Padding comes after a row's own tokens, so it is invisible to them; but not if a method follows the total length
    at a call, or if queries choose together.
    """
    return method.length_dependent or method.call_dependent


def _text(value: Any) -> str:
    """A value as it was written; lm-eval makes a float of 1e3."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
