"""Texts that a command is given: files, stdin, and words of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from longspan import files
from longspan.errors import LongspanError

STDIN = Path("-")


def read_text(path: Path) -> str:
    r"""Read a non-empty UTF-8 text file, or stdin for ``-``; line ends become ``\n``, a byte order mark is left out.

    Raises:
        LongspanError: the text is empty or not UTF-8.
        OSError: the file cannot be read.
    """
    name = "stdin" if path == STDIN else str(path)
    try:
        text = (sys.stdin.buffer.read() if path == STDIN else files.read(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LongspanError(f"{name}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise LongspanError(f"{name}: the file is empty")
    return text


def one_stdin(paths: Sequence[Path | None]) -> None:
    """Raise ``LongspanError`` if several paths are stdin."""
    if list(paths).count(STDIN) > 1:
        raise LongspanError("stdin (-) can be read only once; pass a file for the other text")


def check_text(option: str, text: str) -> None:
    """Raise ``LongspanError`` for bytes that are not UTF-8, which Python passes on as surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LongspanError(f"{option}: not UTF-8 at character {error.start + 1}") from error
