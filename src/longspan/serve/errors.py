"""Errors as OpenAI's API has them."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """An answer that says what is wrong with a request.

    Args:
        param: the field of the request. code: the error's name, for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return error_body(self.status_code, str(self.detail), self.param, self.code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    said = [None if x is None else x.encode("utf-8", "replace").decode() for x in (message, param)]
    return {"error": {"message": said[0], "type": kind, "param": said[1], "code": code}}


def no_room(error: OSError) -> ApiError:
    """507: the folder of documents cannot be written to."""
    return ApiError(507, f"the folder of documents cannot be changed: {error.strerror or error}", code="no_room")


def busy() -> ApiError:
    """429: the queue is full."""
    return ApiError(
        429, "too many requests wait already; try again later", code="queue_full", headers={"Retry-After": "1"}
    )


def crowded(words: str) -> ApiError:
    """503: all places are taken."""
    return ApiError(503, f"{words}; try again later", code="too_many_connections", headers={"Retry-After": "1"})


def draining() -> ApiError:
    """503: the server is about to end."""
    return ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
