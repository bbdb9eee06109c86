"""Errors that name the thing, the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from operator import index


class LongspanError(ValueError):
    """Something longspan was asked for cannot be done."""


class AttachError(LongspanError):
    """A model, or one of its layers, cannot be extended; nothing was changed."""


class CacheError(LongspanError):
    """A cache does not belong to this model, method or batch."""


class CalibrationError(LongspanError):
    """A calibration cannot be made or read, or belongs to another model."""


class DocumentError(LongspanError):
    """A document cannot be read, opened or asked; what was there before is as it was."""


class DataError(LongspanError):
    """A local data file is missing, or not as its task needs it."""


MOST = 2**31  # tokens and the like: more than anything of them is held of, and what kernels count with


def whole(value: object) -> int | None:
    """The int that a value stands for, as numpy's integers do; None where it is no whole number: True and 64.0."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # what it refuses is no whole number
    except TypeError:
        return None


def check_count(name: str, value: object, least: int = 1, what: str = "tokens") -> int:
    """The int of a whole number, ``least`` to ``MOST``; raise ``LongspanError`` for others, such as True and 64.0."""
    found = whole(value)
    if found is None:
        raise LongspanError(f"{name} is a whole number of {what}, not {value!r}")
    if not least <= found <= MOST:
        raise LongspanError(f"{name} is a number of {what} from {least} to {MOST:,}, not {_shown(found)}")
    return found


def check_number(name: str, value: object) -> float:
    """The int or float of a number, numpy's too; raise ``LongspanError`` for any other: True is none, nor is a text."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise LongspanError(f"{name} is a number, not {value!r}")
    found = whole(value)
    return float(value) if found is None else found


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**30 else f"one of {value.bit_length():,} bits"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to end a message with that refuses ``name``: ``; did you mean 'dca'?``, or nothing where none is close."""
    plain = {word.lower().replace("-", "_"): word for word in known}
    found = get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.65)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""
