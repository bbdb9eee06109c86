"""The way of a request through the engine to its answer, whole or streamed, in any format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from longspan.errors import LongspanError
from longspan.serve.answers import Format
from longspan.serve.errors import ApiError
from longspan.serve.events import AttendedPassages, Delta, Event, Finished, PromptProgress
from longspan.serve.generation import Generation, GenerationRequest
from longspan.serve.host import Host
from longspan.serve.tools import CallReader

_CLOSED = Response(status_code=499)  # the client has disconnected


async def answer(
    host: Host, request: Request, generation: GenerationRequest, form: Format, reader: CallReader | None = None
) -> Response:
    """The response to a request: a stream of events if the generation is streamed.

    Args:
        reader: of the calls in the answer, if it may have some.
    """
    loop, events, deltas = asyncio.get_running_loop(), asyncio.Queue[Event](), list[Delta]()

    def emit(event: Event) -> None:
        if not generation.streamed and isinstance(event, Delta | PromptProgress):
            if isinstance(event, Delta):
                deltas.append(event)  # read at the end alone: waking the loop for each would cost as much as sampling
            return
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = host.submit(generation, emit)
    if generation.streamed:
        return _EventStream(host, job, _streamed(host, form, events, reader))
    collected = asyncio.create_task(_finished(host, events))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((collected, gone), return_when=asyncio.FIRST_COMPLETED)
        if not collected.done():
            return _CLOSED
        end, attended = await collected
    finally:
        collected.cancel()
        gone.cancel()
        _cancel(host, job)
    if reader is not None:
        deltas = [_with_calls(reader, delta) for delta in deltas]
        last, end = _ended(reader, end)
        deltas.append(last)
    return Response(form.whole(deltas, end, attended), media_type="application/json")


class _EventStream(EventSourceResponse):
    """Cancels the generation when the client disconnects, also before the first event."""

    def __init__(self, host: Host, job: Generation, events: AsyncIterator[dict[str, str]]) -> None:
        super().__init__(events)
        self._host, self._job = host, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self._host, self._job)


def _cancel(host: Host, job: Generation) -> None:
    if not job.cancelled:
        job.cancelled = True
        host.metrics.gone()


async def _finished(host: Host, events: asyncio.Queue[Event]) -> tuple[Finished, AttendedPassages | None]:
    event = await events.get()
    if isinstance(event, Exception):
        raise _failure(event)
    assert isinstance(event, Finished)
    host.metrics.answered(event)
    return event, await _attended(event)


async def _attended(end: Finished) -> AttendedPassages | None:
    return None if end.attended is None else await run_in_threadpool(end.attended)


async def _streamed(
    host: Host, form: Format, events: asyncio.Queue[Event], reader: CallReader | None
) -> AsyncIterator[dict[str, str]]:
    for one in form.begin():
        yield one
    try:
        while not isinstance(event := await events.get(), Finished):
            if isinstance(event, Exception):
                raise _failure(event)
            if isinstance(event, PromptProgress):
                # Keeps clients and proxies from giving up: else they hear nothing for long.
                yield {"comment": f"reading {event.tokens * 100 // event.prompt}%"}
            else:
                for one in _formatted(form, event if reader is None else _with_calls(reader, event)):
                    yield one
        host.metrics.answered(event)
        if reader is not None:
            last, event = _ended(reader, event)
            for one in _formatted(form, last):
                yield one
        rest = form.end(event, await _attended(event))
    except ApiError as error:
        rest = form.failed(error.body())
    for one in rest:
        yield one


def _formatted(form: Format, delta: Delta) -> list[dict[str, str]]:
    return form.delta(delta) if delta.text or delta.tokens or delta.calls else []


def _with_calls(reader: CallReader, delta: Delta) -> Delta:
    text, calls = reader.feed(delta.text)
    return replace(delta, text=text, calls=tuple(calls))


def _ended(reader: CallReader, end: Finished) -> tuple[Delta, Finished]:
    """The last part of an answer with calls, and its end.

    Raises:
        ApiError: 422, which clients do not try again: it had to be a call and is none.
    """
    text, calls = reader.end()
    if reader.lacking and end.finish == "stop":
        raise ApiError(
            422, "the model's answer is no call of a function, as tool_choice requires; ask again, or use 'auto'",
            code="no_tool_call",
        )  # fmt: skip
    finish = "tool_calls" if reader.calls and end.finish == "stop" else end.finish
    return Delta(text, (), tuple(calls)), replace(end, finish=finish)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _failure(error: Exception) -> ApiError:
    known = isinstance(error, LongspanError)
    return ApiError(500, " ".join(str(error).split()) if known else "the answer could not be computed")
