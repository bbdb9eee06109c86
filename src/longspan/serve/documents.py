"""The routes of documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, UploadFile
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse

from longspan.errors import DocumentError
from longspan.extract import is_plain
from longspan.serve.errors import ApiError, busy, draining, no_room
from longspan.serve.host import Host
from longspan.serve.library import LONGEST_NAME, Held
from longspan.serve.schema import Rename

_LOOK = 0.2  # seconds from one look at a reading to the next
_MOST = 1_000_000  # characters of a text at once


def routes(host: Host) -> APIRouter:
    """``/v1/documents`` and below."""
    router = APIRouter(prefix="/v1/documents", tags=["documents"])

    @router.post("", status_code=202)
    async def upload(
        file: UploadFile, name: Annotated[str | None, Form(min_length=1, max_length=LONGEST_NAME)] = None
    ) -> dict[str, Any]:
        if host.draining:
            raise draining()
        counts = host.library.counts()
        if counts["queued"] + counts["reading"] + host.extractor.pending >= host.settings.max_queue:
            raise busy()
        given = file.filename or "document"
        if any("\ud800" <= c <= "\udfff" for c in name or given):
            raise ApiError(400, "the name has half of a surrogate pair, which is no character", param="name")
        add = partial(host.library.add, name or given[:LONGEST_NAME], file.file, Path(given).suffix)
        try:
            if is_plain(Path(given)):
                held = await run_in_threadpool(add)
            else:
                held = await asyncio.wrap_future(host.extractor.submit(add))
        except DocumentError as error:
            if host.draining:
                raise draining() from None
            raise ApiError(400, str(error), param="file", code="not_a_text") from None
        except OSError as error:
            raise no_room(error) from None
        return held.as_plain()

    @router.get("")
    async def all_of_them() -> dict[str, Any]:
        return {"object": "list", "data": [held.as_plain() for held in host.library.all()]}

    @router.get("/{id}")
    async def one(id: str) -> dict[str, Any]:
        return host.held(id).as_plain()

    @router.patch("/{id}")
    async def rename(id: str, to: Rename) -> dict[str, Any]:
        held = host.held(id)
        try:
            await run_in_threadpool(host.library.rename, held, to.name)
        except OSError as error:
            raise no_room(error) from None
        return held.as_plain()

    @router.delete("/{id}")
    async def delete(id: str) -> dict[str, Any]:
        held = host.held(id)
        document = held.document
        await run_in_threadpool(host.library.delete, held)
        if document is not None:
            host.engine.submit_aside(lambda: host.caches.forget(document))
        return {"id": id, "object": "document", "deleted": True}

    @router.get("/{id}/events", response_class=EventSourceResponse)
    async def events(id: str) -> EventSourceResponse:
        return EventSourceResponse(_progress(host, host.held(id)))

    @router.get("/{id}/text")
    async def text(
        id: str, start: Annotated[int, Query(ge=0)] = 0, end: Annotated[int | None, Query(ge=0)] = None
    ) -> dict[str, Any]:
        whole = host.asked(id).text or ""
        stop = min(len(whole), start + _MOST) if end is None else min(end, len(whole))
        if stop - start > _MOST:
            raise ApiError(400, f"at most {_MOST:,} characters can be had at once", param="end")
        begin = min(start, stop)
        return {"id": id, "start": begin, "end": stop, "characters": len(whole), "text": whole[begin:stop]}

    return router


async def _progress(host: Host, held: Held) -> AsyncIterator[dict[str, str]]:
    """The document whenever something about it has changed, until it is read."""
    told = None
    while True:
        now = held.as_plain()
        if now != told:
            yield {"data": json.dumps(now)}
            told = now
        if now["status"] in ("ready", "failed") or host.draining or host.library.get(held.id) is not held:
            return
        await asyncio.sleep(_LOOK)
