"""The routes of documents."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse
from starlette.datastructures import FormData

from longspan.documents.layout import find_layout
from longspan.errors import DocumentError
from longspan.serve.documents.library import LONGEST_NAME
from longspan.serve.documents.record import DocumentRecord
from longspan.serve.errors import ApiError, busy, draining, no_room
from longspan.serve.host import Host
from longspan.serve.schema import Rename
from longspan.text.extract import is_plain

_POLL_SECONDS = 0.2  # between two events of progress
_LONGEST_LAYOUT = 65_536  # characters, of a layout and of a system prompt
_MAX_CHARACTERS = 1_000_000  # of a text in one response
_MAX_PLACES = 1000  # of a search


def routes(host: Host) -> APIRouter:
    """``/v1/documents`` and below."""
    router = APIRouter(prefix="/v1/documents", tags=["documents"])

    @router.post("", status_code=202)
    async def upload(
        request: Request,
        file: UploadFile,
        name: Annotated[str | None, Form(min_length=1, max_length=LONGEST_NAME)] = None,
        layout: Annotated[str | None, Form(max_length=_LONGEST_LAYOUT)] = None,
        system: Annotated[str, Form(max_length=_LONGEST_LAYOUT)] = "",
    ) -> dict[str, Any]:
        _refuse_others(await request.form())
        if host.draining:
            raise draining()
        counts = host.library.counts()
        if counts["queued"] + counts["reading"] + host.extractor.pending >= host.settings.max_queue:
            raise busy()
        given = file.filename or "document"
        if any("\ud800" <= c <= "\udfff" for c in name or given):
            raise ApiError(400, "the name has half of a surrogate pair, which is not a character", param="name")
        layout = host.library.layout if layout is None else layout
        try:
            find_layout(host.tokenizer, layout, system)
        except DocumentError as error:
            raise ApiError(400, str(error), param="system" if system else "layout") from None
        add = partial(
            host.library.add, name or given[:LONGEST_NAME], file.file, Path(given).suffix, layout=layout, system=system
        )
        try:
            if is_plain(Path(given)):
                record = await run_in_threadpool(add)
            else:
                record = await asyncio.wrap_future(host.extractor.submit(add))
        except DocumentError as error:
            if host.draining:
                raise draining() from None
            raise ApiError(400, str(error), param="file", code="not_a_text") from None
        except OSError as error:
            raise no_room(error) from None
        return record.as_plain()

    @router.get("")
    async def all_of_them() -> dict[str, Any]:
        return {"object": "list", "data": [record.as_plain() for record in host.library.all()]}

    @router.get("/{id}")
    async def one(id: str) -> dict[str, Any]:
        return host.record(id).as_plain()

    @router.patch("/{id}")
    async def rename(id: str, to: Rename) -> dict[str, Any]:
        record = _own(host, id)
        try:
            await run_in_threadpool(host.library.rename, record, to.name)
        except OSError as error:
            raise no_room(error) from None
        return record.as_plain()

    @router.delete("/{id}")
    async def delete(id: str) -> dict[str, Any]:
        record = _own(host, id)
        document = record.document
        try:
            await run_in_threadpool(host.library.delete, record)
        except OSError as error:
            raise no_room(error) from None
        if document is not None:
            host.engine.call_between_steps(lambda: host.caches.forget(document))
        return {"id": id, "object": "document", "deleted": True}

    @router.get("/{id}/events", response_class=EventSourceResponse)
    async def events(id: str) -> EventSourceResponse:
        return EventSourceResponse(_progress(host, host.record(id)))

    @router.get("/{id}/text")
    async def text(
        id: str, start: Annotated[int, Query(ge=0)] = 0, end: Annotated[int | None, Query(ge=0)] = None
    ) -> dict[str, Any]:
        whole = host.ready_document(id).text or ""
        stop = min(len(whole), start + _MAX_CHARACTERS) if end is None else min(end, len(whole))
        if stop - start > _MAX_CHARACTERS:
            raise ApiError(400, f"at most {_MAX_CHARACTERS:,} characters can be read at once", param="end")
        if end is not None and end < start:
            raise ApiError(400, f"end, {end:,}, is before start, {start:,}", param="end")
        begin = min(start, stop)
        return {"id": id, "start": begin, "end": stop, "characters": len(whole), "text": whole[begin:stop]}

    @router.get("/{id}/search")
    async def search(id: str, words: Annotated[str, Query(min_length=1, max_length=1000)]) -> dict[str, Any]:
        """The places of some words, in any case and with any space between them, and how many there are."""
        text, wanted = host.ready_document(id).text or "", words.split()
        if not wanted:
            raise ApiError(400, "words has nothing to search for", param="words")
        found, places = await run_in_threadpool(_search, wanted, text)
        return {"id": id, "words": words, "found": found, "places": places}

    return router


def _own(host: Host, id: str) -> DocumentRecord:
    """A document that may be changed.

    Raises:
        ApiError: 404, there is none; 409, the server did not write it.
    """
    record = host.record(id)
    if not record.own:
        raise ApiError(
            409, "the server does not change or delete what `longspan read` wrote; rename or delete its folder, and "
            "start the server again", code="document_not_own",
        )  # fmt: skip
    return record


def _search(words: list[str], text: str) -> tuple[int, list[dict[str, int]]]:
    """How many places have the words one after the other, and the first of these places."""
    first, *rest = map(re.escape, words)
    whole = re.compile(r"\s+".join([first, *rest]), re.IGNORECASE)
    # From place to place of the first word: no other thread runs inside a search, and one for all may take seconds.
    found, places, end = 0, list[dict[str, int]](), 0
    for at in (one.start() for one in re.finditer(f"(?={first})", text, re.IGNORECASE)):
        match = whole.match(text, at) if at >= end else None
        if match is not None:
            found, end = found + 1, match.end()
            if found <= _MAX_PLACES:
                places.append({"start": at, "end": end})
    return found, places


def _refuse_others(form: FormData) -> None:
    """Refuse fields of which nothing would be made.

    Raises:
        ApiError: 400, by the name of the field.
    """
    given = [field for field, _ in form.multi_items()]
    for field in given:
        if field not in ("file", "name", "layout", "system"):
            raise ApiError(400, f"unknown field {field[:80]!r}", param=field[:80], code="unknown_parameter")
        if given.count(field) > 1:
            raise ApiError(400, f"there is more than one {field}; send a request for each file", param=field)


async def _progress(host: Host, record: DocumentRecord) -> AsyncIterator[dict[str, str]]:
    """The document after each change, until it is read."""
    told = None
    while True:
        now = record.as_plain()
        if now != told:
            yield {"data": json.dumps(now)}
            told = now
        if now["status"] in ("ready", "failed") or host.draining or host.library.get(record.id) is not record:
            return
        await asyncio.sleep(_POLL_SECONDS)
