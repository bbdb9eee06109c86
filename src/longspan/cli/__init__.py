"""The command line. Whatever is wrong with the input ends in one line on stderr and a non-zero exit code.

A command's file declares its options and imports what it computes with when it runs, so that help and completion are
there at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from longspan import signals


def main(args: Sequence[str] | None = None) -> None:
    """Run ``longspan`` with these arguments (the process's own unless given), and exit."""
    try:
        if args is None:
            signals.install("longspan")
        _run(list(sys.argv[1:] if args is None else args))
    except signals.Stopped as stopped:
        signals.leave(stopped.number)


def _run(args: list[str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # what a stream cannot spell it escapes, instead of failing half way
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    import typer

    from longspan.cli.commands import app
    from longspan.errors import LongspanError, out_of_memory

    given = args or ["--help"]
    if any("\0" in arg for arg in given):
        _fail("an argument has a NUL in it", code=2)
    try:
        code = app(args=given, prog_name="longspan", standalone_mode=False)
        sys.stdout.flush()  # what goes wrong here would be two lines of the interpreter's at its end
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)  # as a shell reports an interrupt
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)  # who read the output has enough, as `head` does; typer ends so where it notices first
    except (LongspanError, OSError) as error:
        _fail(_one_line(error))
    except Exception as error:
        # Typer has carried click's classes under changing names; what its errors share is this method.
        if hasattr(error, "format_message"):
            _fail(" ".join(error.format_message().split()), code=2)
        if not out_of_memory(error):
            raise
        _fail("out of memory; try a shorter text, a smaller --dtype or another --device")
    signals.last_words(code or 0)
    sys.exit(code)


def _fail(message: str, code: int = 1) -> NoReturn:
    _drop_output()
    print(f"longspan: error: {message}", file=sys.stderr)
    sys.exit(code)


def _drop_output() -> None:
    """Where stdout takes nothing more, what is left of it goes nowhere: the interpreter would try again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
