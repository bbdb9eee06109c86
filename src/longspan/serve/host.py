"""A server's parts: the model in its engine, documents, caches, and the encoding of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.documents import Document
from longspan.documents.contents import attached
from longspan.documents.folder import Folder
from longspan.documents.layout import find_layout
from longspan.errors import LongspanError
from longspan.machine.memory import free_memory
from longspan.serve.caches import Caches
from longspan.serve.documents.library import Library
from longspan.serve.documents.record import DocumentRecord
from longspan.serve.engine import Engine, QueueFull, log
from longspan.serve.errors import ApiError, busy, draining
from longspan.serve.events import Emit
from longspan.serve.generation import Generation, GenerationRequest
from longspan.serve.metrics import Metrics
from longspan.serve.prompts import PreviousAnswers, Prompt, Prompts, characters_of
from longspan.serve.responses import StoredResponses
from longspan.serve.settings import MIB, ServerSettings
from longspan.serve.together import NextTokens
from longspan.text.extraction import Extractor

_LARGE = 64 * MIB  # bytes of a cache for which the free memory is asked


class Host:
    """One server without HTTP.

    Args:
        model: extended. tokenizer: its own.

    Raises:
        LongspanError: the model is not extended, or another server has the folder of documents.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, settings: ServerSettings, *, layout: str = "auto"
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.prefill_chunk = settings.prefill_chunk
        self.attachment = attached(model)
        found = find_layout(tokenizer, layout)
        self._next_tokens = NextTokens(model)
        self.engine = Engine(settings.max_running, settings.max_queue, self._next_tokens)
        self.caches = Caches(model, memory=settings.memory, directory=settings.kv_dir, disk=settings.kv_disk)
        self.previous_answers, self.responses, self.metrics = PreviousAnswers(), StoredResponses(), Metrics()
        self.extractor = Extractor(
            seconds=settings.extract_seconds, memory=settings.extract_memory, longest=settings.max_body
        )
        self.library = Library(
            settings.documents, self.engine, self.extractor, model, tokenizer,
            source=settings.source, layout=layout, prefill_chunk=settings.prefill_chunk, written=settings.written,
            longest=self.longest,
        )  # fmt: skip
        longest, max_characters = self.longest, settings.max_prompt
        if longest is not None:
            max_characters = min(max_characters, characters_of(tokenizer, longest))
        self.prompts = Prompts(
            deepcopy(tokenizer), found, self.library.ready, self.previous_answers, max_characters=max_characters
        )
        self.draining = False
        self._open = ExitStack()
        self._gauges()

    def start(self) -> None:
        """Lock and load the folder of documents, and start the engine.

        Raises:
            LongspanError: another server has the folder. OSError: it cannot be written to.
        """
        folder = Folder(self.settings.documents)
        folder.make()
        try:
            self._open.enter_context(folder.alone())
        except LongspanError:
            raise LongspanError(f"{folder}: another server uses it; give each server its own --documents") from None
        if (reason := self._next_tokens.unjoinable) is not None:
            log.warning("requests compute their next tokens one by one: %s", reason)
        self.library.load()
        self.engine.start()

    def drain(self) -> None:
        """Accept no more requests, and wait until those that were accepted are answered."""
        self.draining = True
        self.engine.drain()

    def stop(self) -> None:
        """Stop at once; readings continue at the next start."""
        self.draining = True
        self.extractor.close()
        self.library.close()
        self.engine.stop()
        self._open.close()

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return not self.draining and self.library.loaded

    def documents(self) -> Iterable[Document]:
        """The documents that are read."""
        return self.library.ready()

    def submit(self, request: GenerationRequest, emit: Emit) -> Generation:
        """Queue a request.

        Args:
            emit: called with each event, by the engine's thread.

        Raises:
            ApiError: 429, too many wait; 503, the server ends.
        """
        if self.draining:
            raise draining()
        job = Generation(self, request, emit)
        try:
            self.engine.submit(job)
        except QueueFull:
            raise busy() from None
        return job

    def record(self, id: str) -> DocumentRecord:
        """A document of the API.

        Raises:
            ApiError: 404, there is none.
        """
        record = self.library.get(id)
        if record is None:
            raise ApiError(404, "there is no such document", param="document", code="document_not_found")
        return record

    def ready_document(self, id: str) -> Document:
        """A document that is read.

        Raises:
            ApiError: 404, there is none; 409, it is not read yet, or could not be read.
        """
        record = self.record(id)
        document = record.document
        if document is None:
            why = f"could not be read: {record.error}" if record.status == "failed" else "is still being read"
            raise ApiError(409, f"the document {why}", param="document", code=f"document_{record.status}")
        return document

    def check_memory(self, prompt: Prompt, field: str) -> None:
        """Raise ``ApiError`` 400 if the cache of a prompt is larger than all memory that can be had for it."""
        report = self.attachment.report
        known = 0 if prompt.document is None else prompt.document.tokens
        needed = (len(prompt.ids) - known) * report.kv_bytes_per_token
        if needed < _LARGE or report.kv_tier not in ("device", "host"):
            return
        free = free_memory(self.model.device if report.kv_tier == "device" else torch.device("cpu"))
        kept = self.caches.nbytes + self.caches.disk_nbytes  # any of which may be the prompt's, or leave
        if free is not None and needed > free + kept:
            raise ApiError(
                400, f"the prompt has {len(prompt.ids):,} tokens, whose cache takes {needed / MIB:,.0f} MiB; "
                f"{free / MIB:,.0f} MiB are free; `longspan serve --kv-tier disk` reads longer ones", param=field,
                code="context_length_exceeded",
            )  # fmt: skip

    @property
    def longest(self) -> int | None:
        """Tokens that a prompt and its answer can have."""
        report = self.attachment.report
        limits = (report.method.longest(report.window), self.settings.max_length)
        return min((limit for limit in limits if limit is not None), default=None)

    def _gauges(self) -> None:
        gauge, engine, caches, counts = self.metrics.gauge, self.engine, self.caches, self.library.counts
        gauge("requests_waiting", "Requests that wait for their turn.", lambda: engine.waiting)
        gauge("requests_running", "Requests that are being answered.", lambda: engine.running)
        gauge("texts_waiting", "Texts that are being read or wait for that.", lambda: engine.readings)
        gauge(
            "prefill_chunks", "Whole prefill chunks of prompts and texts that were read.", lambda: engine.prefill_chunks
        )
        gauge("conversations", "Caches of conversations.", lambda: len(caches))
        gauge("conversations_bytes", "Bytes of those in memory.", lambda: caches.nbytes)
        gauge("conversations_disk_bytes", "Bytes of those on disk.", lambda: caches.disk_nbytes)
        for status in counts():
            gauge(f"documents_{status}", f"Documents that are {status}.", partial(lambda s: counts()[s], status))
