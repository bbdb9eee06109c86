"""Atomic file writes: after any failure, the path has the complete old file or the complete new one.

All files that longspan writes go through this module, except journals, which only grow by whole lines.
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
from typing import Any, BinaryIO

_TRIAL = b"\0" * 4096  # a full disk rejects this many bytes but still accepts empty files


def write(path: str | os.PathLike[str], content: str | bytes, *, follow: bool = True) -> None:
    """Replace or create a file; text is encoded as UTF-8.

    The content goes to a temporary file in the same folder, is synced to the disk and then moved to ``path``. So a
    reader sees the old or the new file, also after a full disk, a kill or a power failure. An existing file keeps its
    permissions, a new one gets the user's default; a link stays a link, and its target is replaced. Terminals, pipes
    and devices (``/dev/null``) are written to directly.

    Args:
        follow: False replaces the name itself, whatever it is: a link in a folder from somebody else may lead anywhere.

    Raises:
        OSError: the file cannot be written; ``filename`` is ``path``, and the old file is unchanged.
    """
    # A path in a text may contain bytes that are not UTF-8; backslash escapes keep the file valid UTF-8.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with _named(path):
        target = _target(path) if follow else Path(os.path.abspath(path))
        if target is None:
            with open(path, "wb", buffering=0) as special:
                _write_all(special.fileno(), data)
            return
        temporary = _write_temporary(target, data)
        _put(temporary, target)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Replace or create a file piece by piece, as ``write`` does; the file is there if the block ends without an error.

    Yields:
        The temporary file beside it, open for binary writing.

    Raises:
        OSError: see ``write``.
    """
    with _named(path):
        target = _target(path)
        if target is None:
            raise OSError(errno.EINVAL, "a device, not a file")
        temporary = _write_temporary(target, b"")
    try:
        with open(temporary, "r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with _named(path):
        _put(temporary, target)


def check(path: str | os.PathLike[str]) -> None:
    """Raise the errors of ``write`` that can be detected before a long computation; leaves no file behind.

    Raises:
        OSError: the folder does not exist, is full or not writable, or ``path`` is a folder.
    """
    with _named(path):
        target = _target(path)
        if target is not None:
            _write_temporary(target, _TRIAL).unlink()


def read(path: str | os.PathLike[str]) -> bytes:
    """Read all bytes of a file or a pipe.

    Raises:
        OSError: the file cannot be read, or is a device; an endless device would fill the memory.
    """
    with _named(path), open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "a device, not a file")
        return file.read()


def cache_folder() -> Path:
    """The user's folder for what longspan keeps between processes; raises ``RuntimeError`` for one without a home."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_home) if os.path.isabs(cache_home) else Path.home() / ".cache") / "longspan"


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int) -> None:
    """Write a matplotlib figure in the format of the path's suffix (PNG without one), and close the figure.

    Raises:
        OSError: see ``write``.
    """
    from matplotlib import pyplot as plt

    image, kind = BytesIO(), Path(path).suffix[1:].lower() or "png"
    figure.savefig(image, format=kind, dpi=dpi)
    plt.close(figure)
    if kind == "png":  # 64 colours are enough for a chart, and take a quarter of the bytes
        from PIL import Image

        whole = Image.open(image).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        image = BytesIO()
        whole.save(image, "PNG", optimize=True, dpi=(dpi, dpi))
    write(path, image.getvalue())


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put ``path`` into errors, instead of the name of the temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    except ValueError as error:  # the name contains a NUL
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error


def _target(path: str | os.PathLike[str]) -> Path | None:
    """The file that a path resolves to, existing or not; None for a terminal, a pipe or a device.

    Raises:
        OSError: the path is empty, is a folder or ends like one, is not writable, or is a circular link.
    """
    name = os.fsdecode(path)
    if not name:
        raise FileNotFoundError(errno.ENOENT, "the file's name is empty")
    target = Path(os.path.realpath(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if name.endswith((os.sep, os.altsep or os.sep)):
            raise IsADirectoryError(
                errno.EISDIR, f"a file name must not end in {name[-1]}, which denotes a folder; leave it out"
            ) from None
        return target
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied")
    return target if stat.S_ISREG(status.st_mode) else None


def _write_temporary(target: Path, data: bytes) -> Path:
    """Write and sync a temporary file beside the target, with the target's owner and permissions."""
    path = target.with_name(f".longspan-{token_hex(8)}.part")  # short, as the target's name may have maximal length
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags, 0o666), "wb", buffering=0) as file:
            with suppress(FileNotFoundError):
                old = os.lstat(target)
                if stat.S_ISREG(old.st_mode):
                    _copy_owner_and_mode(old, path)
            _write_all(file.fileno(), data)
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _put(temporary: Path, target: Path) -> None:
    """Move a complete temporary file to its target."""
    try:
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _copy_owner_and_mode(old: os.stat_result, path: Path) -> None:
    new = os.stat(path)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):  # only the superuser can change a file's owner
            os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk; some file systems do not support this for folders."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
