"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from longspan.errors import LongspanError
from longspan.serve import answers, schema
from longspan.serve.documents.routes import routes as document_routes
from longspan.serve.errors import ApiError, error_body
from longspan.serve.events import AttendedPassages, Delta, Event, Finished
from longspan.serve.generation import Generation, GenerationRequest
from longspan.serve.host import Host
from longspan.serve.prompts import Prompt
from longspan.serve.sampling import Sampling
from longspan.serve.security import Guard
from longspan.version import __version__

PAGE = Path(__file__).parent / "page"
_CLOSED = Response(status_code=499)  # the client has disconnected


def build(host: Host) -> ASGIApp:
    """The ASGI application of a host; the caller starts and stops the host."""
    app = FastAPI(title="longspan", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _server_error)
    app.include_router(document_routes(host))
    _generation_routes(app, host)
    _model_routes(app, host)
    _page_routes(app)
    settings = host.settings
    return Guard(
        app, api_key=settings.api_key, loopback=settings.loopback, max_body=settings.max_body,
        most=settings.connections, most_of_address=settings.max_address_connections,
        requested=host.metrics.requested,
    )  # fmt: skip


def _generation_routes(app: FastAPI, host: Host) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: schema.ChatRequest) -> Response:
        schema.refuse_others(body, schema.ChatParams)
        _check_model(host, body.model)
        with_usage, most = schema.include_usage(body), schema.most_tokens(body)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs requires logprobs=true", param="top_logprobs")
        document = None if body.document is None else host.ready_document(body.document)
        prompt = await _encoded(host.prompts.chat, body.messages, document)
        if body.passages and prompt.document is None:
            raise ApiError(400, "passages require a document: name it in the field document", param="passages")
        generation = _generation_request(
            host, body, prompt, most, (body.top_logprobs or 0) if body.logprobs else None, passages=bool(body.passages),
        )  # fmt: skip
        form = answers.ChatFormat(body.model, logprobs=bool(body.logprobs), with_usage=with_usage)
        return await _answer(host, request, generation, form, stream=bool(body.stream))

    @app.post("/v1/completions")
    async def completions(request: Request, body: schema.CompletionRequest) -> Response:
        schema.refuse_others(body, schema.CompletionParams)
        _check_model(host, body.model)
        with_usage = schema.include_usage(body)
        prompt = await _encoded(host.prompts.completion, _one_prompt(host, body.prompt))
        generation = _generation_request(host, body, prompt, body.max_tokens, body.logprobs)
        form = answers.CompletionFormat(body.model, logprobs=body.logprobs is not None, with_usage=with_usage)
        return await _answer(host, request, generation, form, stream=bool(body.stream))


def _model_routes(app: FastAPI, host: Host) -> None:
    report = host.attachment.report
    about = {"method": report.method.name, "window": report.window}
    about |= {"version": __version__}
    model = {"id": host.settings.model, "object": "model", "created": 0, "owned_by": "longspan", "longspan": about}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{id:path}")
    async def one_model(id: str) -> dict[str, Any]:
        _check_model(host, id)
        return model

    @app.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/health")
    @app.get("/health/ready")
    async def ready() -> Response:
        return JSONResponse({"status": "ready" if host.ready else "not ready"}, 200 if host.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(host.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _page_routes(app: FastAPI) -> None:
    files = {file.name: file for file in PAGE.glob("*") if file.suffix in (".html", ".css", ".js", ".svg")}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await part_of_page("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part_of_page(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "this file does not exist")
        return FileResponse(files[name], headers={"Cache-Control": "no-cache"})


def _check_model(host: Host, name: str) -> None:
    if name != host.settings.model:
        raise ApiError(
            404, f"the model {name[:80]!r} is not served here; this server has {host.settings.model!r}", param="model",
            code="model_not_found",
        )  # fmt: skip


def _one_prompt(host: Host, prompt: Any) -> str | list[int]:
    """The one prompt of a request, a text or ids.

    Raises:
        ApiError: 400, it is empty, one of several, or has characters or ids that do not exist.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if not prompt:
        raise ApiError(400, "prompt is empty; there is nothing to continue", param="prompt")
    if isinstance(prompt, str):
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise ApiError(400, "prompt has half of a surrogate pair, which is not a character", param="prompt")
        return prompt
    if not isinstance(prompt[0], int):
        raise ApiError(400, "several prompts in one request are not supported; send a request for each", param="prompt")
    known = host.model.get_input_embeddings().num_embeddings
    if not all(0 <= token < known for token in prompt):
        raise ApiError(400, f"prompt has a token that is not in the model's vocabulary of {known:,}", param="prompt")
    ids: list[int] = prompt
    return ids


async def _encoded(encode: Any, *args: Any) -> Prompt:
    prompt: Prompt = await run_in_threadpool(encode, *args)
    return prompt


def _generation_request(
    host: Host, body: Any, prompt: Prompt, most: int | None, alternatives: int | None, *, passages: bool = False
) -> GenerationRequest:
    """The request to the engine.

    Raises:
        ApiError: 400, prompt and answer are longer than the limit.
    """
    length, longest = len(prompt.ids), host.longest
    if not length:
        raise ApiError(400, "the prompt has no tokens", param="messages" if hasattr(body, "messages") else "prompt")
    if longest is not None and length + (most or 1) > longest:
        raise ApiError(
            400, f"the prompt has {length:,} tokens and the answer up to {most or 1:,}; together they may "
            f"have at most {longest:,}", param="messages" if hasattr(body, "messages") else "prompt",
            code="context_length_exceeded",
        )  # fmt: skip
    if most is None:
        most = host.settings.max_new_tokens if longest is None else min(host.settings.max_new_tokens, longest - length)
    sampling = Sampling(body.temperature, body.top_p, body.seed, alternatives)
    return GenerationRequest(
        prompt.ids,
        most,
        sampling,
        schema.stops(body.stop),
        prompt.document,
        passages,
        streamed=bool(body.stream),
        digest=prompt.digest,
    )


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


async def _answer(
    host: Host, request: Request, generation: GenerationRequest, form: answers.ResponseFormat, *, stream: bool
) -> Response:
    loop, events, deltas = asyncio.get_running_loop(), asyncio.Queue[Event](), list[Delta]()

    def emit(event: Event) -> None:
        if isinstance(event, Delta) and not stream:
            deltas.append(event)  # read at the end alone: waking the loop for each would cost as much as sampling
            return
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = host.submit(generation, emit)
    if stream:
        return _EventStream(host, job, _streamed(host, form, events))
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
    return Response(form.whole(deltas, end, attended), media_type="application/json")


async def _finished(host: Host, events: asyncio.Queue[Event]) -> tuple[Finished, AttendedPassages | None]:
    event = await events.get()
    if isinstance(event, Exception):
        raise ApiError(500, _reason(event))
    assert isinstance(event, Finished)
    host.metrics.answered(event)
    return event, await _attended(event)


async def _attended(end: Finished) -> AttendedPassages | None:
    return None if end.attended is None else await run_in_threadpool(end.attended)


async def _streamed(
    host: Host, form: answers.ResponseFormat, events: asyncio.Queue[Event]
) -> AsyncIterator[dict[str, str]]:
    for text in form.begin():
        yield {"data": text}
    while not isinstance(event := await events.get(), Finished):
        if isinstance(event, Exception):
            yield {"data": json.dumps(error_body(500, _reason(event)))}
            return
        yield {"data": form.delta(event)}
    host.metrics.answered(event)
    for text in form.end(event, await _attended(event)):
        yield {"data": text}
    yield {"data": "[DONE]"}


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) if isinstance(error, LongspanError) else "the answer could not be computed"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error.body() if isinstance(error, ApiError) else error_body(error.status_code, str(error.detail))
    return JSONResponse(body, error.status_code, error.headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        place, why = first["loc"][-1], first.get("ctx", {}).get("error", first["msg"])
        return JSONResponse(error_body(400, f"the body is not JSON: {why} at character {place}"[:300]), 400)
    if first["type"] == "model_attributes_type":  # a body of another type, as curl sends a form, is not parsed
        return JSONResponse(
            error_body(400, "the body must be a JSON object, sent with the header Content-Type: application/json"), 400
        )
    where = _place([part for part in first["loc"] if part not in ("body", "query", "path")], error.body)
    field = ".".join(str(part) for part in where[:3])[:120] or None
    return JSONResponse(error_body(400, f"{field or 'the request'}: {first['msg'][:300]}", field), 400)


def _place(place: list[Any], body: Any) -> list[Any]:
    """A place in a body without the types that pydantic adds if a field may have one of several."""
    found = place[:1]
    for part, inside in pairwise(place):
        try:
            body = body[part]
            body[inside]
        except (TypeError, LookupError):
            break
        found.append(inside)
    return found


async def _server_error(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "the server failed; its log says why"), 500)
