"""The documents of a server: a folder for each, named by its id, read in the background one after the other.

In ``DIR/<id>/`` are ``meta.json``, written last when a text is taken in; ``text.txt`` until it is read; and
``document``, what ``longspan.read`` keeps. What was taken in is read, and a reading that was broken off is taken up
again. ``DIR/.upload-*`` are files that come in; those of a server that was killed are removed at the next start.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, BinaryIO, Literal

from transformers import PreTrainedModel

from longspan import files
from longspan.documents import Document
from longspan.documents.folder import MANIFEST
from longspan.documents.reader import Steps, begin
from longspan.errors import DocumentError
from longspan.extract import is_plain
from longspan.serve.engine import Engine
from longspan.serve.extraction import Extractor

ID = re.compile(r"doc-[0-9a-f]{24}")
LONGEST_NAME = 255  # characters
_META, _TEXT, _DOCUMENT, _GONE, _UPLOAD = "meta.json", "text.txt", "document", ".deleted-", ".upload-"
_LOG = logging.getLogger("longspan.serve")

Status = Literal["queued", "reading", "ready", "failed"]


@dataclass
class Held:
    """A document of the server.

    Attributes:
        bytes: of the file. characters: of its text. tokens: of the document, None until they are counted.
        tokens_read: that are kept. rate: tokens a second of this process; None until there is one.
        document: when it is ready.
    """

    id: str
    name: str
    created_at: int
    bytes: int
    characters: int
    folder: Path
    status: Status = "queued"
    tokens: int | None = None
    tokens_read: int = 0
    rate: float | None = None
    error: str | None = None
    document: Document | None = None
    job: _Reading | None = field(default=None, repr=False)

    def as_plain(self) -> dict[str, Any]:
        """The API's object."""
        left = None
        if self.status == "reading" and self.rate and self.tokens is not None:
            left = round((self.tokens - self.tokens_read) / self.rate, 3)
        return {
            "id": self.id, "object": "document", "name": self.name, "status": self.status,
            "created_at": self.created_at, "bytes": self.bytes, "characters": self.characters, "tokens": self.tokens,
            "tokens_read": self.tokens_read, "tokens_per_second": self.rate and round(self.rate, 3),
            "seconds_left": left, "error": self.error,
        }  # fmt: skip

    def write(self) -> None:
        """Bring what is said of it to the disk."""
        said = {name: getattr(self, name) for name in ("name", "created_at", "bytes", "characters", "error")}
        files.write(self.folder / _META, json.dumps(said, indent=1), follow=False)


class Library:
    """All documents of a folder, which no other server has.

    Args:
        source: what the model was loaded from. layout: where texts stand, of new documents.
        piece: tokens that are read at a time. extractor: of the texts of PDF and HTML files.
    """

    def __init__(
        self,
        root: Path,
        engine: Engine,
        extractor: Extractor,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        source: str,
        layout: str,
        piece: int,
    ) -> None:
        self._root, self._engine, self._model, self._extractor = root, engine, model, extractor
        # A tokenizer keeps options of its last call: one for the thread that encodes, and one for the engine's.
        self._tokenizer, self._tokenizer_of_engine = deepcopy(tokenizer), deepcopy(tokenizer)
        self._source, self._layout, self._piece = source, layout, piece
        self._held: dict[str, Held] = {}
        self._lock = Lock()
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="longspan-documents")

    def load(self) -> None:
        """Take in what is in the folder."""
        for path in sorted(self._root.iterdir()):
            if path.name.startswith(_GONE):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(_UPLOAD):
                path.unlink(missing_ok=True)
            elif ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                self._take(path)

    def _take(self, path: Path) -> None:
        try:
            said = json.loads(files.read(path / _META))
            name = str(said["name"]).encode("utf-8", "replace").decode()
            held = Held(
                path.name, name, int(said["created_at"]), int(said["bytes"]), int(said["characters"]),
                path, error=said["error"],
            )  # fmt: skip
        except FileNotFoundError:  # nobody was told that it was taken in
            shutil.rmtree(path, ignore_errors=True)
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s: is no document of a server (%s); it is left alone", path, error)
            return
        self._held[held.id] = held
        if held.error is not None:
            held.status = "failed"
        else:
            self._read(held)

    def ready(self) -> list[Document]:
        """Those that can be asked."""
        return [held.document for held in list(self._held.values()) if held.document is not None]

    @property
    def loaded(self) -> bool:
        """Whether all that were read before are open."""
        return not any(held.job is not None and held.job.opens for held in list(self._held.values()))

    def counts(self) -> dict[str, int]:
        """How many there are of each status."""
        found = dict.fromkeys(("queued", "reading", "ready", "failed"), 0)
        for held in list(self._held.values()):
            found[held.status] += 1
        return found

    def all(self) -> list[Held]:
        """In the order in which they came."""
        return sorted(self._held.values(), key=lambda held: (held.created_at, held.id))

    def get(self, id: str) -> Held | None:
        return self._held.get(id) if ID.fullmatch(id) else None

    def add(self, name: str, content: BinaryIO, suffix: str = "") -> Held:
        """Take in a file, which goes on being read in the background; it is on the disk when this returns.

        Args:
            suffix: of the file's name, which says whether it is PDF or HTML.

        Raises:
            DocumentError: there is no text in it. OSError: the disk is full.
        """
        kind = "" if is_plain(Path(f"x{suffix}")) else suffix.lower()
        with NamedTemporaryFile(dir=self._root, prefix=_UPLOAD, suffix=kind, delete=False) as upload:
            path = Path(upload.name)
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            text = self._extractor.text_of(path) if kind else _plain_text(path)
            size = path.stat().st_size
        finally:
            path.unlink(missing_ok=True)
        id = f"doc-{token_hex(12)}"
        folder = self._root / id
        held = Held(id, name, int(time.time()), size, len(text), folder)
        try:
            folder.mkdir()
            files.write(folder / _TEXT, text.encode("utf-8"))
            held.write()
            files.sync_folder(self._root)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._held[id] = held
        self._read(held)
        return held

    def rename(self, held: Held, name: str) -> None:
        """Give it another name."""
        with self._lock:
            before, held.name = held.name, name
            try:
                held.write()
            except OSError:
                held.name = before
                raise

    def delete(self, held: Held) -> None:
        """Remove it; who is being answered from it keeps its bytes until then."""
        with self._lock:
            if self._held.pop(held.id, None) is None:
                return
            if held.job is not None:
                held.job.cancelled = True
            held.document = None
            gone = self._root / f"{_GONE}{held.id}"
            held.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        self._preparing.shutdown(wait=True, cancel_futures=True)

    def _read(self, held: Held) -> None:
        held.job = _Reading(held, opens=(held.folder / _DOCUMENT / MANIFEST).is_file())
        self._preparing.submit(self._prepare, held, held.job)

    def _prepare(self, held: Held, job: _Reading) -> None:
        """Encode a text, which takes a while, outside of the engine's thread."""
        out = held.folder / _DOCUMENT
        try:
            if job.opens:
                job.opener = lambda: Document.open(out, self._model, self._tokenizer_of_engine)
            else:
                text = files.read(held.folder / _TEXT).decode("utf-8")
                job.steps = begin(
                    self._model, self._tokenizer, [(held.name, text)],
                    layout=self._layout, piece=self._piece, out=out, source=self._source,
                )  # fmt: skip
        except Exception as error:
            job.fail(error)
            return
        self._engine.read(job)


class _Reading:
    """Reads a text, or opens one that was read; see ``engine.Job``."""

    long = True

    def __init__(self, held: Held, *, opens: bool) -> None:
        self._held, self.opens = held, opens
        self.opener: Any = None
        self.steps: Steps | None = None
        self.cancelled = False
        self._began, self._first = 0.0, 0

    def step(self) -> bool:
        held = self._held
        if self.opener is not None:
            document = self.opener()
            # Their checksums are compared when they are first needed: a damaged document fails here, and no chat by it.
            assert document.contents.ids is not None and document.text is not None
            self._done(document)
            return False
        assert self.steps is not None
        if held.status != "reading":
            held.status, self._began = "reading", time.perf_counter()
        try:
            held.tokens_read, held.tokens = next(self.steps)
        except StopIteration as end:
            self._done(end.value)
            return False
        if not self._first:
            self._first, self._began = held.tokens_read, time.perf_counter()  # an earlier process read some of it
        else:
            held.rate = (held.tokens_read - self._first) / (time.perf_counter() - self._began)
        return True

    def _done(self, document: Document) -> None:
        held = self._held
        held.tokens = held.tokens_read = document.tokens
        if not self.cancelled:
            held.document, held.status = document, "ready"
            with suppress(OSError):  # the document has its own
                (held.folder / _TEXT).unlink(missing_ok=True)
        held.job = None

    def close(self) -> None:
        if self.steps is not None:
            self.steps.close()

    def fail(self, error: Exception) -> None:
        held = self._held
        held.job = None
        if self.cancelled:
            return
        expected = isinstance(error, (DocumentError, OSError))
        _LOG.error("%s cannot be read: %s", held.id, error, exc_info=None if expected else error)
        held.status, held.error = "failed", " ".join(str(error).split())
        # What was read stays as it is, and what did not fail by its text is tried again at the next start.
        if not self.opens and isinstance(error, DocumentError):
            with suppress(OSError):
                held.write()


def _plain_text(upload: Path) -> str:
    try:
        text = files.read(upload).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"the file is no UTF-8 text ({error.reason} at byte {error.start})") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise DocumentError("there is no text in the file")
    return text
