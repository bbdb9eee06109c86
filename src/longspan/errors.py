"""Errors that name the thing, the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LongspanError(ValueError):
    """Something longspan was asked for cannot be done."""


class AttachError(LongspanError):
    """A model, or one of its layers, cannot be extended; nothing was changed."""


class CacheError(LongspanError):
    """A cache does not belong to this model, method or batch."""


class CalibrationError(LongspanError):
    """A calibration cannot be made or read, or belongs to another model."""


class DataError(LongspanError):
    """A local data file is missing, or not as its task needs it."""


MOST = 2**31  # tokens and the like: more than anything of them is held of, and what kernels count with


def check_count(name: str, value: object, least: int = 1, what: str = "tokens") -> None:
    """Raise ``LongspanError`` unless a value is a whole number, ``least`` to ``MOST``; True and 64.0 are none."""
    if type(value) is not int:
        raise LongspanError(f"{name} is a whole number of {what}, not {value!r}")
    if not least <= value <= MOST:
        raise LongspanError(f"{name} is a number of {what} from {least} to {MOST:,}, not {_shown(value)}")


def check_number(name: str, value: object) -> None:
    """Raise ``LongspanError`` unless a value is a number; True is none, nor is a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise LongspanError(f"{name} is a number, not {value!r}")


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**30 else f"one of {value.bit_length():,} bits"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to end a message with that refuses ``name``: ``; did you mean 'dca'?``, or nothing where none is close."""
    plain = {word.lower().replace("-", "_"): word for word in known}
    found = get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.65)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""
