"""Errors of longspan. Each message states the object, the reason and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from operator import index


class LongspanError(ValueError):
    """longspan cannot do what was requested; the base class of its errors."""


class AttachError(LongspanError):
    """A model or one of its layers cannot be extended; the model is unchanged."""


class CacheError(LongspanError):
    """A cache does not belong to this model, method or batch."""


class CalibrationError(LongspanError):
    """A calibration cannot be computed or read, or belongs to another model."""


class DocumentError(LongspanError):
    """A document cannot be read, opened or asked; what was there before is as it was."""


class GradientError(LongspanError, RuntimeError):
    """A forward has no gradients."""


class MethodError(LongspanError, TypeError):
    """The class of a method contradicts itself."""


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text with its control characters as escapes, which a terminal would obey; tabs and line breaks stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; each line of a ``LongspanError`` stays a statement of its own."""
    lines = str(error).split("\n") if isinstance(error, LongspanError) else [str(error)]
    return "; ".join(" ".join(line.split()) for line in lines if line.strip())


MOST = 2**31  # the largest count of tokens and other items: far above practical sizes, and the limit of the kernels


def whole(value: object) -> int | None:
    """The int of an integer, numpy's included; None for any other value, also for True and 64.0."""
    if type(value).__name__ in ("bool", "bool_"):  # numpy's is an index before numpy 2
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # raises TypeError for other types
    except TypeError:
        return None


def check_count(name: str, value: object, least: int = 1, what: str = "tokens") -> int:
    """The int of an integer from ``least`` to ``MOST``, numpy's included.

    Raises:
        LongspanError: the value is out of range or not an integer; True and 64.0 are not integers.
    """
    number = whole(value)
    if number is None:
        raise LongspanError(f"{name} must be an integer number of {what}, not {value!r}")
    if not least <= number <= MOST:
        shown = str(number) if abs(number) < 10**30 else f"an integer of {number.bit_length():,} bits"
        raise LongspanError(f"{name} must be a number of {what} from {least} to {MOST:,}, not {shown}")
    return number


def check_number(name: str, value: object) -> float:
    """The int or float of a real number, numpy's included.

    Raises:
        LongspanError: the value is NaN or not a number; True and texts are not numbers.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise LongspanError(f"{name} must be a number, not {value!r}")
    number = whole(value)
    return float(value) if number is None else number


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown ``name``: ``; did you mean 'dca'?``, or "" if no known name is similar."""
    normalized = {word.lower().replace("-", "_"): word for word in known}
    matches = get_close_matches(name.lower().replace("-", "_"), normalized, n=1, cutoff=0.65)
    return f"; did you mean {normalized[matches[0]]!r}?" if matches else ""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error reports exhausted memory: on a GPU, or on the CPU, where torch raises a plain RuntimeError."""
    import torch  # imported here: `import longspan` loads this module and must not load torch

    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
