"""The documents of a server: a folder for each, named by its id, read in the background one after the other.

In ``DIR/<id>/`` are ``meta.json``, written last when a text is taken in; ``text.txt`` until it is read; and
``document``, what ``longspan.read`` keeps. Each text taken in is read, and a reading that was broken off is taken up
again. ``DIR/.upload-*`` are files that come in; those of a server that was killed are removed at the next start.
Any other document in ``DIR``, and each that the server is started with, is opened and left as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, BinaryIO

from transformers import PreTrainedModel

from longspan import files
from longspan.documents import Document
from longspan.documents.contents import attached
from longspan.documents.folder import RECORD, Folder, placed
from longspan.documents.method import method_of
from longspan.documents.reader import begin
from longspan.errors import DocumentError
from longspan.methods.parse import written
from longspan.serve.documents.reading import TEXT, ReadingJob
from longspan.serve.documents.record import DocumentRecord
from longspan.serve.documents.written import record_of, written_in
from longspan.serve.engine import Engine, log
from longspan.text.extract import is_plain
from longspan.text.extraction import Extractor

ID = re.compile(r"doc-[0-9a-f]{24}")
LONGEST_NAME = 255  # characters
_DELETED, _UPLOAD = ".deleted-", ".upload-"


class Library:
    """All documents of a folder, which no other server has.

    Args:
        source: what the model was loaded from. layout: where texts stand, of new documents.
        prefill_chunk: tokens that are read at a time. extractor: of the texts of PDF and HTML files.
        written: documents that `longspan read` wrote, beside those in the folder.
        longest: tokens of a prompt and its answer, which a document has to leave room in; None for no limit.
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
        prefill_chunk: int,
        written: Sequence[Path] = (),
        longest: int | None = None,
    ) -> None:
        self._longest, self._written = longest, written
        self._root, self._engine, self._model, self._extractor = root, engine, model, extractor
        # A tokenizer keeps options of its last call: one for the thread that encodes, and one for the engine's.
        self._tokenizer, self._tokenizer_of_engine = deepcopy(tokenizer), deepcopy(tokenizer)
        self._source, self.layout, self._prefill_chunk = source, layout, prefill_chunk
        self._records: dict[str, DocumentRecord] = {}
        self._lock = Lock()
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="longspan-documents")

    def load(self) -> None:
        """Load the documents of the folder, and remove what a killed server left."""
        for path in sorted(self._root.iterdir()):
            if path.name.startswith(_DELETED):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(_UPLOAD):
                path.unlink(missing_ok=True)
            elif ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                self._load_record(path)
        for path in (*written_in(self._root), *map(placed, self._written)):
            record = record_of(path)
            if record.folder not in [one.place.resolve() for one in self._records.values()]:
                self._records[record.id] = record
                self._read(record)

    def _load_record(self, path: Path) -> None:
        try:
            said = json.loads(files.read(path / RECORD))
            name = str(said["name"]).encode("utf-8", "replace").decode()
            record = DocumentRecord(
                path.name, name, int(said["created_at"]), int(said["bytes"]), int(said["characters"]), path,
                layout=str(said.get("layout", self.layout)), system=str(said.get("system", "")),
            )  # fmt: skip
        except FileNotFoundError:  # its upload was not confirmed yet
            shutil.rmtree(path, ignore_errors=True)
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: is not a document of a server (%s); the server leaves it as it is", path, error)
            return
        self._records[record.id] = record
        self._read(record)

    def ready(self) -> list[Document]:
        """The documents that can be asked."""
        return [record.document for record in list(self._records.values()) if record.document is not None]

    @property
    def loaded(self) -> bool:
        """Whether all that were read before are open."""
        return not any(record.job is not None and record.opens for record in list(self._records.values()))

    def counts(self) -> dict[str, int]:
        """The number of documents by status."""
        found = dict.fromkeys(("queued", "reading", "ready", "failed"), 0)
        for record in list(self._records.values()):
            found[record.status] += 1
        return found

    def all(self) -> list[DocumentRecord]:
        """All documents, in the order of their creation."""
        return sorted(self._records.values(), key=lambda record: (record.created_at, record.id))

    def get(self, id: str) -> DocumentRecord | None:
        """The document of an id; None if there is none."""
        return self._records.get(id) if ID.fullmatch(id) else None

    def add(
        self, name: str, content: BinaryIO, suffix: str = "", *, layout: str | None = None, system: str = ""
    ) -> DocumentRecord:
        """Add a document, which the engine reads in the background; its text is on the disk when this returns.

        Args:
            content: of the file. suffix: of the file's name; .pdf, .html and the like are extracted.
            layout, system: see ``longspan.read``; the layout of the server unless given.

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
        layout = self.layout if layout is None else layout
        record = DocumentRecord(id, name, int(time.time()), size, len(text), folder, layout, system)
        try:
            folder.mkdir()
            files.write(folder / TEXT, text.encode("utf-8"))
            record.write()
            files.sync_folder(self._root)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._records[id] = record
        self._read(record)
        return record

    def rename(self, record: DocumentRecord, name: str) -> None:
        """Change the name of a document.

        Raises:
            OSError: the folder cannot be written to; the name is as before.
        """
        with self._lock:
            before, record.name = record.name, name
            try:
                record.write()
            except OSError:
                record.name = before
                raise

    def delete(self, record: DocumentRecord) -> None:
        """Delete a document; an answer that is being generated from it keeps its bytes until it ends.

        Raises:
            OSError: the folder cannot be written to; the document is there as before.
        """
        with self._lock:
            if record.id not in self._records:
                return
            gone = self._root / f"{_DELETED}{record.id}"
            record.folder.rename(gone)  # first: a job that is cancelled removes the folder
            if record.job is not None:
                record.job.cancelled = True
            del self._records[record.id]
            record.document = None
        shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        """Stop encoding texts; the engine closes the readings."""
        self._preparing.shutdown(wait=True, cancel_futures=True)

    def _read(self, record: DocumentRecord) -> None:
        record.opens = not record.own or Folder(record.place).has_document()
        record.job = job = ReadingJob(record, self._longest, self._lock)
        self._preparing.submit(self._prepare, record, job)

    def _prepare(self, record: DocumentRecord, job: ReadingJob) -> None:
        """Encode a text, which takes a while, outside of the engine's thread."""
        try:
            if record.opens:
                job.opener = partial(self._open, record.place)
            else:
                text, begun = files.read(record.folder / TEXT).decode("utf-8"), Folder(record.place).unfinished()
                # A reading goes on as it began, whatever the server's prefill chunks and the document's name are now.
                name, prefill_chunk = record.name, self._prefill_chunk
                if begun is not None:
                    name, prefill_chunk = begun.facts.sources[0].name, begun.facts.prefill_chunk
                job.steps = begin(
                    self._model, self._tokenizer, [(name, text)],
                    layout=record.layout, system=record.system, prefill_chunk=prefill_chunk, out=record.place,
                    source=self._source,
                )  # fmt: skip
        except Exception as error:
            job.fail(error)
            return
        self._engine.read(job)

    def _open(self, place: Path) -> Document:
        """A document; the error about one of another method says how it is served."""
        try:
            return Document.open(place, self._model, self._tokenizer_of_engine)
        except DocumentError as error:
            way_out = ""
            with suppress(OSError, DocumentError):
                method = method_of(Folder(place).manifest().facts)
                if method != attached(self._model).attender.method:
                    way_out = f"\n`longspan serve --method {written(method)}` opens it"
            raise DocumentError(f"{error}{way_out}") from None


def _plain_text(upload: Path) -> str:
    try:
        text = files.read(upload).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"the file is not UTF-8 text ({error.reason} at byte {error.start})") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise DocumentError("the file contains no text")
    return text
