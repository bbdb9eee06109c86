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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to end a message with that refuses ``name``: ``; did you mean 'dca'?``, or nothing where none is close."""
    plain = {word.lower().replace("-", "_"): word for word in known}
    found = get_close_matches(name.lower().replace("-", "_"), plain, n=1)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""
