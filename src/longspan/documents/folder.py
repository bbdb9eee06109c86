"""The folder of a document: it is whole, or there is no document in it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from longspan import files
from longspan.documents.manifest import LONGEST, Manifest, Stored, parse
from longspan.documents.segments import size_of
from longspan.errors import DocumentError

MANIFEST, READING, CALIBRATION = "manifest.json", "reading.json", "calibration.safetensors"
# A server keeps a document in a part of a folder of its own, beside what it says of it.
SERVED, RECORD = "document", "meta.json"
_OURS = re.compile(r"(data|tokens|state|text|reading)-\d{4,12}\.(bin|safetensors|txt)|" + re.escape(READING))
# The most bytes of a file: a number, more for each token, more for each byte of the segments. longspan writes far less.
_LIMITS = {
    "manifest": (LONGEST, 0, 0), "calibration": (2**30, 0, 0), "tokens": (2**16, 16, 0), "text": (2**20, 2**10, 0),
    "state": (2**24, 0, 64), "reading": (2**24, 0, 64),
}  # fmt: skip
_HOLES = 2**24, 64  # bytes from which a file may not be larger than so many times what the disk has of it


class Folder:
    """A folder that a document is in, or will be."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))

    def __str__(self) -> str:
        return str(self.path)

    def has_document(self) -> bool:
        """Whether a whole document is here."""
        return (self.path / MANIFEST).is_file()

    def open(self, name: str, *, write: bool = False, change: bool = False) -> Any:
        """A file of the folder: a plain one that lies in it, and no link.

        Args:
            write: make it anew, to read and write. A reader that has an older file of this name open keeps that one.
            change: open what is there, to read and write.

        Raises:
            DocumentError: it is missing, or something else. OSError: it cannot be opened.
        """
        if Path(name).name != name or name in ("", ".", ".."):
            raise DocumentError(f"{self}: its manifest names {name!r}, which is not a file of the folder")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if write else os.O_RDWR if change else os.O_RDONLY
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            if write:
                (self.path / name).unlink(missing_ok=True)
            opened = os.open(self.path / name, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOENT, errno.EISDIR):
                why = "is a link" if error.errno == errno.ELOOP else "is not there"
                raise DocumentError(f"{self}: {name} {why}; the document is damaged, read the text again") from None
            raise
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise DocumentError(f"{self}: {name} is not a regular file; the document is damaged, read the text again")
        return os.fdopen(opened, "r+b" if write or change else "rb", buffering=0)

    def open_small(self, name: str, expected: Stored | None = None, *, tokens: int = 0, data: int = 0) -> Any:
        """A file beside the segments, open to be read, of a size that the manifest states and that can be.

        Args:
            tokens, data: of the document, and the bytes of its segments, which say how large the file can be.

        Raises:
            DocumentError: it has another size, or more bytes than such a file can have.
        """
        kind = "manifest" if name == READING else name.partition("-")[0].partition(".")[0]
        fixed, by_token, by_byte = _LIMITS[kind]
        limit, file = fixed + by_token * tokens + by_byte * data, self.open(name)
        status = os.fstat(file.fileno())
        size, stored = status.st_size, 512 * getattr(status, "st_blocks", 2**60)  # Windows does not say
        wanted = None
        if expected is not None and size != expected.size:
            wanted = f" instead of the {expected.size:,}"
        elif size > limit:
            wanted = f", and no more than {limit:,} can be right"
        elif size > _HOLES[0] and size > _HOLES[1] * stored:
            wanted = f", of which the disk has {stored:,}"
        if wanted is None:
            return file
        file.close()
        raise DocumentError(f"{self}: {name} has {size:,} bytes{wanted}; it is damaged, read the text again")

    def read(self, name: str, expected: Stored | None = None, *, tokens: int = 0, data: int = 0) -> bytes:
        """The bytes of a file beside the segments, which are those that the manifest states; see ``open_small``."""
        return self.read_whole(name, self.open_small(name, expected, tokens=tokens, data=data), expected)

    def read_whole(self, name: str, file: Any, expected: Stored | None) -> bytes:
        """The bytes of such a file, which is closed then; raises ``DocumentError`` if their checksum is another."""
        with file:
            data: bytes = file.readall()
        if expected is not None and hashlib.sha256(data).hexdigest() != expected.sha256:
            raise DocumentError(f"{self}: {name} is not what was written (its checksum differs); read the text again")
        return data

    def write(self, name: str, data: bytes) -> Stored:
        """Write a small file, whole or not at all; a link of this name is replaced, and what it leads to stays."""
        files.write(self.path / name, data, follow=False)
        return Stored(len(data), hashlib.sha256(data).hexdigest())

    def manifest(self) -> Manifest:
        """The document's.

        Raises:
            DocumentError: there is no document, its reading was not finished, or the manifest is damaged.
        """
        if not self.path.exists():
            raise DocumentError(f"{self}: this document does not exist; create it with `longspan read`")
        if not self.path.is_dir():
            raise DocumentError(f"{self}: is a file; a document is a folder that `longspan read` created")
        if not os.path.lexists(self.path / MANIFEST):
            begun = self.unfinished()
            if begun is None:
                raise DocumentError(f"{self}: this folder is not a document: it has no {MANIFEST}")
            again = "start its server" if is_served(self.path.parent) else "run the same `longspan read`"
            raise DocumentError(
                f"{self}: its reading is unfinished ({begun.tokens:,} of {begun.facts.tokens:,} tokens); {again} again "
                "to continue"
            )
        try:
            return parse(self.read(MANIFEST))
        except DocumentError as error:
            said = str(error) if str(error).startswith(str(self)) else f"{self}: {error}"
            way_out = "" if "read the text again" in said else "; the manifest is damaged, read the text again"
            raise DocumentError(said + way_out) from None

    def unfinished(self) -> Manifest | None:
        """The manifest of a reading that was not finished."""
        if not os.path.lexists(self.path / READING):
            return None
        try:
            return parse(self.read(READING))
        except DocumentError as error:
            raise DocumentError(
                f"{self}: the saved part of its reading cannot be used ({error}); {self.way_to_begin_anew()}"
            ) from None

    def way_to_begin_anew(self) -> str:
        """The remedy for a reading that was not finished and cannot be taken up."""
        whole = self.has_document()
        return f"remove {READING} from it to append again" if whole else "remove the folder to start over"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Write in this block; another process that does so too makes this raise ``DocumentError``."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        opened = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DocumentError(f"{self}: another process is writing to it; wait until it is done") from None
            except OSError:  # a file system that knows no locks
                pass
            yield
        finally:
            os.close(opened)

    def finish(self, manifest: Manifest) -> None:
        """Put the manifest there: from now on this is the document. Files that it does not name go."""
        self.write(MANIFEST, manifest.to_json().encode())
        self.tidy(manifest)

    def tidy(self, manifest: Manifest) -> None:
        """Remove files of ours that the document does not name."""
        self.clean(self.named(manifest))

    def drop_finished(self) -> None:
        """Remove what a process left beside the document that ended after the manifest was there; see ``alone``."""
        manifest, begun = self.manifest(), self.unfinished()
        if begun is not None and begun.facts.tokens_sha256 != manifest.facts.tokens_sha256:
            return  # an append that goes on
        self.clean(self.named(manifest))

    @staticmethod
    def named(manifest: Manifest) -> set[str]:
        """The files that a manifest names."""
        return {*manifest.files, *(data_name(n) for n in range(len(manifest.segments)))}

    def make(self) -> None:
        """Make the folder if it is missing; its name is on the disk as its files will be."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for path in missing:
            files.sync_folder(path.parent)

    def strange(self) -> list[str]:
        """Files that no document and no reading of one has."""
        known = {MANIFEST, CALIBRATION}
        return sorted(name for name in os.listdir(self.path) if name not in known and not self._ours(name))

    def clean(self, named: set[str]) -> None:
        """Remove files of ours that are not ``named``: those of writings that were broken off."""
        for name in os.listdir(self.path):
            if self._ours(name) and name not in named:
                with suppress(OSError):
                    (self.path / name).unlink()

    @staticmethod
    def _ours(name: str) -> bool:
        return bool(_OURS.fullmatch(name)) or (name.startswith(".longspan-") and name.endswith(".part"))


def is_served(path: Path) -> bool:
    """Whether a server keeps a document in a folder, in its part ``SERVED``."""
    return (path / RECORD).is_file() and (path / SERVED).is_dir()


def placed(path: str | os.PathLike[str]) -> Path:
    """The folder of a document that somebody names: the one named, or its part if a server keeps the document there."""
    return Path(path) / SERVED if is_served(Path(path)) else Path(path)


def open_data(folder: Folder, manifest: Manifest, number: int, *, change: bool = False) -> Any:
    """The open file of a segment, which has the size that its manifest says.

    Args:
        change: open it to write to it too.

    Raises:
        DocumentError: it is missing, no plain file, or of another size.
    """
    name, file = data_name(number), folder.open(data_name(number), change=change)
    wanted = size_of(manifest.streams, manifest.segments[number])
    size = os.fstat(file.fileno()).st_size
    if size != wanted:
        file.close()
        raise DocumentError(
            f"{folder}: {name} has {size:,} bytes, but its manifest requires {wanted:,}; it is damaged, read "
            "the text again"
        )
    return file


def data_name(number: int) -> str:
    """The file of a segment."""
    return f"data-{number:04}.bin"
