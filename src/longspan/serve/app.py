"""The routes of the server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from longspan.serve import answers, schema
from longspan.serve.answering import answer
from longspan.serve.documents.routes import routes as document_routes
from longspan.serve.errors import ApiError, error_body
from longspan.serve.generation import GenerationRequest
from longspan.serve.host import Host
from longspan.serve.messages import Message, characters, check_last, read_messages
from longspan.serve.prompts import Prompt
from longspan.serve.responses import ResponsesFormat, StoredResponse, about_response, read_items
from longspan.serve.sampling import Sampling
from longspan.serve.security import Guard
from longspan.serve.tools import read_tools
from longspan.version import __version__
from longspan.weights import PACKED_AS

PAGE = Path(__file__).parent / "page"
# Parts of OpenAI's API that are not here, by the reason.
_ABSENT = {
    "the model reads and writes text alone": ("images", "audio", "videos", "realtime"),
    "the model generates text; embeddings and scores need a server with another model": ("embeddings", "moderations"),
    "texts are uploaded to /v1/documents": ("files", "uploads", "vector_stores"),
    "a conversation goes on by previous_response_id": ("conversations", "assistants", "threads"),
    "each request is answered by itself": ("batches", "fine_tuning"),
    "a long conversation is read as it is": ("responses/compact",),
}


def build(host: Host) -> ASGIApp:
    """The ASGI application of a host; the caller starts and stops the host."""
    app = FastAPI(title="longspan", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _server_error)
    app.include_router(document_routes(host))
    _generation_routes(app, host)
    _response_routes(app, host)
    _model_routes(app, host)
    _absent_routes(app)
    _page_routes(app)
    settings = host.settings
    return Guard(
        app, api_keys=settings.api_keys, loopback=settings.loopback, max_body=settings.max_body,
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
        messages = read_messages(body.messages)
        tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, nested=True)
        document = None if body.document is None else host.ready_document(body.document)
        prompt = await _encoded(host.prompts.chat, messages, document, tools)
        if body.passages and prompt.document is None:
            raise ApiError(400, "passages require a document: name it in the field document", param="passages")
        generation = _generation_request(
            host, body, prompt, most, (body.top_logprobs or 0) if body.logprobs else None, passages=bool(body.passages),
        )  # fmt: skip
        form = answers.ChatFormat(body.model, logprobs=bool(body.logprobs), with_usage=with_usage)
        return await answer(host, request, generation, form, prompt.reader)

    @app.post("/v1/completions")
    async def completions(request: Request, body: schema.CompletionRequest) -> Response:
        schema.refuse_others(body, schema.CompletionParams)
        _check_model(host, body.model)
        with_usage = schema.include_usage(body)
        prompt = await _encoded(host.prompts.completion, _one_prompt(host, body.prompt))
        generation = _generation_request(host, body, prompt, body.max_tokens, body.logprobs)
        form = answers.CompletionFormat(body.model, logprobs=body.logprobs is not None, with_usage=with_usage)
        return await answer(host, request, generation, form)


def _response_routes(app: FastAPI, host: Host) -> None:
    @app.post("/v1/responses")
    async def respond(request: Request, body: schema.ResponseRequest) -> Response:
        schema.refuse_others(body, schema.ResponseParams)
        _check_model(host, body.model)
        earlier = body.previous_response_id
        before = None if earlier is None else host.responses.get(earlier, 400, "previous_response_id")
        messages = [*(before.messages if before is not None else ()), *read_items(body.input)]
        check_last(messages, "input")
        tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, nested=False)
        name = body.document or (before.document if before is not None else None)
        document = None if name is None else host.ready_document(name)
        system = [Message("system", characters(body.instructions, "instructions"))] if body.instructions else []
        try:
            prompt = await _encoded(host.prompts.chat, [*system, *messages], document, tools)
        except ApiError as error:
            error.param = "input" if error.param == "messages" else error.param
            raise
        generation = _generation_request(host, body, prompt, body.max_output_tokens, None)

        def keep(response: dict[str, Any], message: Message) -> None:
            if body.store is not False:
                host.responses.keep(StoredResponse(response, (*messages, message), name))

        form = ResponsesFormat(about_response(body, host.model.generation_config), keep)
        return await answer(host, request, generation, form, prompt.reader)

    @app.get("/v1/responses/{id}")
    async def response(id: str) -> dict[str, Any]:
        return host.responses.get(id).body

    @app.delete("/v1/responses/{id}")
    async def delete(id: str) -> dict[str, Any]:
        host.responses.delete(id)
        return {"id": id, "object": "response", "deleted": True}


def _model_routes(app: FastAPI, host: Host) -> None:
    report = host.attachment.report
    about = {
        "method": report.method.name, "window": report.window, "length": host.longest,
        "weights": getattr(host.model, PACKED_AS, None) or str(host.model.dtype).removeprefix("torch."),
        "version": __version__,
    }  # fmt: skip
    model = {"id": host.settings.model, "object": "model", "created": 0, "owned_by": "longspan", "longspan": about}
    model["max_model_len"] = host.longest  # as vLLM names it, for clients that ask

    # The page asks: up to how many tokens an answer sees them all, whether it chooses of more, whether answers end.
    method, window = report.method, report.window
    about |= {"whole": None if method.selection(window).budget is None else method.plain_queries(window)}
    about |= {"chooses": method.selects, "chat": bool(getattr(host.tokenizer, "chat_template", None))}

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


def _absent_routes(app: FastAPI) -> None:
    def refuse(path: str, why: str) -> Callable[[], None]:
        def absent() -> None:
            raise ApiError(404, f"{path} is not served here: {why}", code="unsupported_endpoint")

        return absent

    for why, names in _ABSENT.items():
        for path in (f"/v1/{name}" for name in names):
            for own in (path, f"{path}/{{rest:path}}"):
                app.add_api_route(own, refuse(path, why), methods=["GET", "POST", "DELETE"], include_in_schema=False)


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
    field = next(name for name in ("messages", "prompt", "input") if hasattr(body, name))
    if not length:
        raise ApiError(400, "the prompt has no tokens", param=field)
    if longest is not None and length + (most or 1) > longest:
        raise ApiError(
            400, f"the prompt has {length:,} tokens and the answer up to {most or 1:,}; together they may "
            f"have at most {longest:,}", param=field, code="context_length_exceeded",
        )  # fmt: skip
    host.check_memory(prompt, field)
    if most is None:
        most = host.settings.max_new_tokens if longest is None else min(host.settings.max_new_tokens, longest - length)
    sampling = Sampling(body.temperature, body.top_p, getattr(body, "seed", None), alternatives)
    return GenerationRequest(
        prompt.ids,
        most,
        sampling,
        schema.stops(getattr(body, "stop", None)),
        prompt.document,
        passages,
        streamed=bool(body.stream),
        digest=prompt.digest,
        special=prompt.special,
    )


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
