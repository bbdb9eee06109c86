"""The output of commands: results on stdout, all else on stderr, and the errors of the library in one line."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console

from longspan.errors import LongspanError, printable
from longspan.install import pip_install

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def notes(quiet: bool) -> Console:
    """The console on stderr for all output besides results; it prints nothing if ``quiet``."""
    return Console(stderr=True, quiet=quiet, highlight=False)


def say(console: Console, text: str) -> None:
    """Print a line without markup and without wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    ascii_only = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "") != "utf8"
    print(json.dumps(value, indent=1, ensure_ascii=ascii_only, allow_nan=False))


def wide() -> Console:
    """The console for tables on stdout: as wide as the terminal, or 200 columns without one, so that no cell wraps."""
    page = Console(highlight=False)
    return page if page.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=200)


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """If ``quiet``, suppress warnings and the output of libraries on stderr."""
    if not quiet:
        yield
        return
    with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def warnings_said(console: Console, label: str) -> Iterator[None]:
    """Print the warnings of a block that are for users, a line each, once it has ended without an error."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        yield
    for warning in caught:
        if issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
            continue
        say(console, printable(f"{label}: {warning.message}"))


@contextmanager
def refusals() -> Iterator[None]:
    """Convert a ``ValueError``, by which the library refuses a value, to the ``LongspanError`` of a command."""
    try:
        yield
    except ValueError as error:
        raise LongspanError(str(error)) from error


def no_pictures(console: Console) -> bool:
    """Whether matplotlib is missing; prints a note if so."""
    missing = find_spec("matplotlib") is None
    if missing:
        say(console, f"no pictures: matplotlib is missing ({pip_install('plot')})")
    return missing


def prefill_bar(model: PreTrainedModel, quiet: bool) -> AbstractContextManager[None]:
    """``longspan.progress`` if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    import longspan

    return longspan.progress(model)
