"""One document of a server is read, or opened, as a job of the engine."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from threading import Lock
from typing import Any

from longspan.documents import Document
from longspan.documents.reader import Steps
from longspan.errors import LongspanError, one_line
from longspan.serve.documents.record import DocumentRecord
from longspan.serve.engine import log

TEXT = "text.txt"  # in the folder of a document until it is read


class ReadingJob:
    """Reads a text, or opens one that was read; see ``engine.Job``.

    Args:
        lock: held while a document is deleted.
    """

    long = True

    def __init__(self, record: DocumentRecord, longest: int | None, lock: Lock) -> None:
        self._record, self._longest, self._lock = record, longest, lock
        self.opener: Any = None
        self.steps: Steps | None = None
        self.cancelled = False
        self._began, self._first = 0.0, 0

    def step(self) -> bool:
        record = self._record
        if self.opener is not None:
            document = self.opener()
            self._refuse_longer(document.tokens)
            # Their checksums are compared when they are first needed: a damaged document fails here, and no chat by it.
            _ = document.contents.ids, document.text
            self._done(document)
            return False
        assert self.steps is not None
        if record.status != "reading":
            record.status, self._began = "reading", time.perf_counter()
        try:
            record.tokens_read, record.tokens = next(self.steps)
        except StopIteration as end:
            self._done(end.value)
            return False
        try:
            self._refuse_longer(record.tokens)
        except LongspanError:
            self.steps.close()
            raise
        if not self._first:
            self._first, self._began = record.tokens_read, time.perf_counter()  # an earlier process read some of it
        else:
            record.rate = (record.tokens_read - self._first) / (time.perf_counter() - self._began)
        return True

    def _refuse_longer(self, tokens: int) -> None:
        """Raise ``LongspanError`` for a document that leaves no room for a question."""
        if self._longest is not None and tokens >= self._longest:
            raise LongspanError(
                f"it has {tokens:,} tokens, but prompt and answer may have at most {self._longest:,} together, so no "
                "question about it could be answered"
            )

    def _done(self, document: Document) -> None:
        record = self._record
        with self._lock:
            record.tokens = record.tokens_read = document.tokens
            if not self.cancelled:
                record.document, record.status = document, "ready"
                if record.own:
                    with suppress(OSError):  # the document has its own
                        (record.folder / TEXT).unlink(missing_ok=True)
            record.job = None
        self._clear()

    def close(self) -> None:
        if self.steps is not None:
            self.steps.close()
        self._clear()

    def _clear(self) -> None:
        """Remove the folder where a step that began before the document was deleted made it again."""
        if self.cancelled:
            shutil.rmtree(self._record.folder, ignore_errors=True)

    def fail(self, error: Exception) -> None:
        record = self._record
        with self._lock:  # a deletion moves the folder away, which may be the error, and then cancels
            cancelled, record.job = self.cancelled, None
        if cancelled:
            self._clear()
            return
        expected = isinstance(error, (LongspanError, OSError))
        name = record.id if record.own else record.folder
        log.error("%s cannot be read: %s", name, error, exc_info=None if expected else error)
        # The reading stays as it is, and is tried again at the next start, which may have another model or more room.
        record.status, record.error = "failed", one_line(error)
