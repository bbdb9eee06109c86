"""Files that the package writes: the old one or the new one is there, whole, whatever happens meanwhile.

Everything that leaves a file behind writes it here. Journals are the exception: they only grow, by whole lines.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import Any

_TRIED = b"\0" * 4096  # what a full disk has no room for, though it still makes empty files


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file anew; text as UTF-8.

    It is written under another name in the same folder, brought to the disk and moved, so a reader finds the old or the
    new one, and so does whoever comes after a full disk, a kill or a power cut. Permissions of a file that is there are
    kept, a new one gets the user's own; a link stays a link to the file that is written. What is no file (a terminal, a
    pipe, ``/dev/null``) is written to as it is.

    Raises:
        OSError: it cannot be written, with ``path`` as its ``filename``; the old file is as it was.
    """
    # A path in a text may hold bytes that are no UTF-8; they are spelt out, so that the file can still be read.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with _named(path):
        target = _target(path)
        if target is None:
            with open(path, "wb", buffering=0) as special:
                _all(special.fileno(), data)
            return
        beside = _fill(target, data)
        try:
            os.replace(beside, target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _settle(target.parent)


def check(path: str | os.PathLike[str]) -> None:
    """Raise what ``write`` would raise, as far as can be known beforehand; nothing stays changed.

    Raises:
        OSError: the folder is missing, denied or full, or the path is that of a folder.
    """
    with _named(path):
        target = _target(path)
        if target is not None:
            _fill(target, _TRIED).unlink()


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file or a pipe that a user named.

    Raises:
        OSError: it cannot be read, or is a device: one that never ends would take all memory.
    """
    with _named(path), open(path, "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise OSError(errno.EINVAL, "a device, not a file")
        return file.read()


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int) -> None:
    """Write a figure of matplotlib's as a picture of the kind that the name ends in, and close it.

    Raises:
        OSError: see ``write``.
    """
    from matplotlib import pyplot as plt

    drawn = BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", dpi=dpi)
    plt.close(figure)
    write(path, drawn.getvalue())


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors name the file that was asked for, not the one beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    except ValueError as error:  # a name with a NUL in it
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error


def _target(path: str | os.PathLike[str]) -> Path | None:
    """The file that a path leads to, which need not be there; None for what is no file.

    Raises:
        OSError: it is a folder or called like one, has no name, may not be written, or links lead nowhere.
    """
    name = os.fsdecode(path)
    if not name:
        raise FileNotFoundError(errno.ENOENT, "the file's name is empty")
    target = Path(os.path.realpath(path))
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if name.endswith((os.sep, os.altsep or os.sep)):
            raise IsADirectoryError(
                errno.EISDIR, "a name that ends like a folder's is none for a file; leave out what it ends in"
            ) from None
        return target
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied")
    return target if stat.S_ISREG(found.st_mode) else None


def _fill(target: Path, data: bytes) -> Path:
    """A file beside the target with the data on the disk, and the target's owner and permissions."""
    beside = target.with_name(f".longspan-{token_hex(8)}.part")  # short: the target's own name may be as long as can be
    try:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with suppress(FileNotFoundError):
                _like(os.stat(target), beside)
            _all(opened, data)
            os.fsync(opened)
        finally:
            os.close(opened)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _like(old: os.stat_result, new: Path) -> None:
    made = os.stat(new)
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):  # only the superuser gives files away
            os.chown(new, old.st_uid, old.st_gid)
    os.chmod(new, stat.S_IMODE(old.st_mode))


def _all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _settle(folder: Path) -> None:
    """Bring a move to the disk; some file systems have no such thing for a folder."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
