"""Checks before every route: places, host, origin, key and body; and the security headers of every response."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longspan.serve.errors import ApiError, crowded, draining
from longspan.serve.settings import is_loopback

_PAGE = "/page/"  # needs no key, like the page itself
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware around the application.

    Args:
        api_keys: of which requests must have one, if there are any.
        loopback: whether only this machine can reach the server; then a name of another one in ``Host`` is that of a
            page that wants to be taken for this server.
        max_body: bytes of a request.
        most, most_of_address: requests at a time, and those of one address; the routes of health take no place.
        requested: called with the route and the status of every response.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Iterable[str],
        loopback: bool,
        max_body: int,
        most: int,
        most_of_address: int,
        requested: Callable[[str, int], None],
    ) -> None:
        self._app, self._loopback, self._max_body, self._requested = app, loopback, max_body, requested
        self._most, self._most_of_address = most, most_of_address
        self._requests, self._of_address = 0, Counter[str]()
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, head, place = False, scope["method"] == "HEAD", ExitStack()
        if head:
            scope = {**scope, "method": "GET"}

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
                self._requested(getattr(scope.get("route"), "path", "other"), message["status"])
            elif head:
                return
            await send(message)
            if head:  # ends here: the connection's next request would wait for the end of a stream
                await send({"type": "http.response.body"})
            if head or (message["type"] == "http.response.body" and not message.get("more_body")):
                place.close()  # a client may send its next request as soon as the answer is complete

        try:
            with place:
                place.enter_context(self._place(scope))
                self._check(scope["path"], Headers(scope=scope))
                await self._app(scope, self._limited(receive), guarded)
        except ApiError as error:
            if begun:
                raise
            await _response(error)(scope, receive, guarded)
        except asyncio.CancelledError:  # the server ends at once; what has begun is broken off without a proper end
            if not begun:
                await _response(draining())(scope, receive, guarded)

    @contextmanager
    def _place(self, scope: Scope) -> Iterator[None]:
        """A place among the requests that are answered; none is needed to ask for the server's health."""
        if _asks_for_health(scope["path"]):
            yield
            return
        address = scope["client"][0] if scope.get("client") else ""
        if self._requests >= self._most:
            raise crowded("too many requests at a time")
        if self._of_address[address] >= self._most_of_address:
            raise crowded("too many requests of one address at a time")
        self._requests += 1
        self._of_address[address] += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_name(host)):
            raise ApiError(403, "this server answers only to localhost and loopback addresses", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            raise ApiError(403, "pages of other origins may not call this server", code="wrong_origin")
        if self._keys and path != "/" and not path.startswith(_PAGE) and not _asks_for_health(path):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            given = key.strip().encode("utf-8", "surrogateescape")
            found = [hmac.compare_digest(given, key) for key in self._keys]  # all of them: time says nothing
            if not any(found) or scheme.lower() != "bearer":
                raise ApiError(
                    401, "this server needs a key: Authorization: Bearer KEY", code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )  # fmt: skip
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may believe the other one
            raise ApiError(
                400, "a request has Content-Length or Transfer-Encoding, not both", code="ambiguous_length",
                headers={"Connection": "close"},
            )  # fmt: skip
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """A body that did not say how long it is is counted as it comes."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the request has more than {self._max_body:,} bytes", code="request_too_large")


def _response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status_code, error.headers)


def _asks_for_health(path: str) -> bool:
    return path == "/health" or path.startswith("/health/")


def _name(host: str) -> str:
    """The host without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
