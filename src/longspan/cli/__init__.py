"""The command line. Whatever is wrong with the input ends in one line on stderr and a non-zero exit code.

A command's file declares its options and imports what it computes with when it runs, so that help and completion are
there at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> None:
    """Run ``longspan`` with these arguments (the process's own unless given), and exit."""
    import typer

    from longspan.cli.commands import app, with_address
    from longspan.errors import LongspanError

    given = list(sys.argv[1:] if args is None else args) or ["--help"]
    if given[0] == "eval":
        given = with_address(given)
    try:
        code = app(args=given, prog_name="longspan", standalone_mode=False)
    except typer.Abort:
        sys.exit(130)  # as a shell reports an interrupt
    except (LongspanError, OSError) as error:
        _fail(_one_line(error))
    except Exception as error:
        # Typer has carried click's classes under changing names; what its errors share is this method.
        if hasattr(error, "format_message"):
            _fail(" ".join(error.format_message().split()), code=2)
        from longspan.evaluation.runner import out_of_memory

        if not out_of_memory(error):
            raise
        _fail("out of memory; try a shorter text, a smaller --dtype or another --device")
    sys.exit(code)


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"longspan: error: {message}", file=sys.stderr)
    sys.exit(code)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
