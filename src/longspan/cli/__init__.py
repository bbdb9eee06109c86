"""The command line. Every invalid input gives one line on stderr and a non-zero exit code.

The module of a command declares its options. It imports slow modules only when the command runs, so that help and
completion are fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from longspan import signals
from longspan.errors import one_line, printable


def main(args: Sequence[str] | None = None) -> None:
    """Run ``longspan`` with these arguments, by default those of the process, and exit."""
    _open_missing_streams()
    try:
        if args is None:
            signals.install("longspan")
        _run(list(sys.argv[1:] if args is None else args))
    except signals.Stopped as stopped:
        signals.leave(stopped.number)


def _open_missing_streams() -> None:
    """Open the null device for each standard stream that the process was started without, as by ``<&-`` in a shell.

    In the order of their descriptors, of which each open takes the lowest that is free: a file of ours that got the
    number of stdout or stderr would be written into by whatever writes to that number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _run(args: list[str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # escape characters outside the stream's encoding instead of failing
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    import typer

    from longspan.cli.commands import app
    from longspan.errors import LongspanError, out_of_memory

    args = args or ["--help"]
    if any("\0" in arg for arg in args):
        _fail("an argument contains a NUL character", code=2)
    try:
        code = app(args=args, prog_name="longspan", standalone_mode=False)
        sys.stdout.flush()  # an error of the interpreter's own flush at exit would print two lines
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)  # the exit code of an interrupt in a shell
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)  # the reader of stdout closed it, as `head` does; typer exits with the same code
    except OSError as error:
        _fail(one_line(error) if error.filename is None else f"{error.filename}: {error.strerror}")
    except LongspanError as error:
        _fail(one_line(error))
    except Exception as error:
        # The class names of typer's errors differ between versions; all have this method.
        if hasattr(error, "format_message"):
            _fail(" ".join(error.format_message().split()), code=2)
        if not out_of_memory(error):
            raise
        _fail("out of memory; use a shorter text, a smaller --dtype or another --device")
    signals.last_words(code or 0)
    sys.exit(code)


def _fail(message: str, code: int = 1) -> NoReturn:
    _drop_output()
    print(f"longspan: error: {printable(message)}", file=sys.stderr)
    sys.exit(code)


def _drop_output() -> None:
    """If stdout is closed or full, redirect it to the null device: the interpreter would flush it again at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
