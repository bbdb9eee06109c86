"""The request bodies: those fields of OpenAI's types that this server honours, and its own.

Another field of OpenAI's API is accepted if its value changes nothing, and otherwise refused by name.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

from openai.types.chat.completion_create_params import CompletionCreateParamsBase as _Chat
from openai.types.completion_create_params import CompletionCreateParamsBase as _Completion
from openai.types.responses.response_create_params import ResponseCreateParamsBase as _Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from longspan.serve.errors import ApiError

ChatParams: Any = _Chat
CompletionParams: Any = _Completion
ResponseParams: Any = _Response

_COMMON: dict[str, Any] = {
    "model": Field(min_length=1),
    "max_tokens": Field(default=None, ge=1, le=2**31),
    "seed": Field(default=None, ge=-(2**63), lt=2**63),
    "stop": Field(default=None),
    "stream_options": Field(default=None),
    "temperature": Field(default=None, ge=0, le=2, allow_inf_nan=False),
    "top_p": Field(default=None, gt=0, le=1, allow_inf_nan=False),
}
_CHAT = _COMMON | {
    "max_completion_tokens": Field(default=None, ge=1, le=2**31),
    "logprobs": Field(default=None),
    "top_logprobs": Field(default=None, ge=0, le=20),
}
_RESPONSE = {name: _COMMON[name] for name in ("model", "temperature", "top_p")} | {
    "max_output_tokens": Field(default=None, ge=1, le=2**31),
}
_COMPLETION = _COMMON | {"logprobs": Field(default=None, ge=0, le=5)}

# Values that change nothing, beside null and empty ones.
_NO_OP_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "echo": (False,),
    "store": (False,), "suffix": ("",), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "service_tier": ("auto", "default"),
    "verbosity": ("medium",), "background": (False,), "truncation": ("disabled",), "top_logprobs": (0,),
    "include": (["reasoning.encrypted_content"],), "text": ({"format": {"type": "text"}},),
    "reasoning": ({"effort": None, "summary": None}, {"effort": "none"}),
}  # fmt: skip
# They identify the user, or say how long a cache is kept; nothing here depends on them.
_IGNORED = {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}


def _without_marker(hint: Any) -> Any:
    """A type without the mark whether it has to be given."""
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _model(name: str, params: Any, fields: dict[str, Any], **more: Any) -> type[BaseModel]:
    hints = {key: _without_marker(hint) for key, hint in get_type_hints(params, include_extras=True).items()}
    hints["model"] = str  # OpenAI's is a list of its own models
    own: dict[str, Any] = {
        key: (hints[key] if field.is_required() else hints[key] | None, field) for key, field in fields.items()
    }
    # Strict: no text is a number.
    return create_model(name, __config__=ConfigDict(extra="allow", strict=True), **own, **more)


_Stream = (bool | None, None)
_Document = (Annotated[str | None, Field(description="a document that the messages are about")], None)
_TOOLS: dict[str, Any] = {
    "tools": (list[dict[str, Any]] | None, None),
    "tool_choice": (str | dict[str, Any] | None, None),
    "parallel_tool_calls": (bool | None, None),
}
ChatRequest: Any = _model(
    "ChatRequest",
    ChatParams,
    _CHAT,
    messages=(Annotated[list[dict[str, Any]], Field(min_length=1)], ...),
    stream=_Stream,
    **_TOOLS,
    document=_Document,
    passages=(
        Annotated[bool | None, Field(description="return the sentences that the answer attended to most")],
        None,
    ),
)
ResponseRequest: Any = _model(
    "ResponseRequest",
    ResponseParams,
    _RESPONSE,
    input=(str | Annotated[list[dict[str, Any]], Field(min_length=1)], ...),
    instructions=(str | None, None),
    previous_response_id=(str | None, None),
    store=(bool | None, None),
    metadata=(dict[str, str] | None, None),
    stream=_Stream,
    document=_Document,
    **_TOOLS,
)
CompletionRequest: Any = _model(
    "CompletionRequest",
    CompletionParams,
    _COMPLETION,
    prompt=(str | list[str] | list[int] | list[list[int]], ...),
    stream=_Stream,
)


class Rename(BaseModel):
    """A document's new name."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(min_length=1, max_length=255)]


def refuse_others(request: BaseModel, params: Any) -> None:
    """Refuse fields that are not honoured.

    Args:
        params: OpenAI's type of this request.

    Raises:
        ApiError: 400, by the name of the field.
    """
    known = _fields(params)
    for name, value in (request.model_extra or {}).items():
        if name not in known:
            raise ApiError(400, f"unknown field {name[:80]!r}", param=name[:80], code="unknown_parameter")
        nothing = value is None or value in ([], {}) or any(_same(value, x) for x in _NO_OP_VALUES.get(name, ()))
        if not nothing and name not in _IGNORED:
            raise ApiError(
                400, f"{name} is not supported by this server; leave it out", param=name, code="unsupported_parameter"
            )


@functools.cache  # resolving the annotations takes long beside the rest of a check
def _fields(params: Any) -> frozenset[str]:
    return frozenset(get_type_hints(params))


def _same(value: Any, other: Any) -> bool:
    """Equal, and of one type but for numbers: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def stops(value: Any) -> tuple[str, ...]:
    """The stop strings of a request.

    Raises:
        ApiError: 400, there are more than four, or one is empty.
    """
    found = (value,) if isinstance(value, str) else tuple(value or ())
    if len(found) > 4 or not all(isinstance(x, str) and x for x in found):
        raise ApiError(400, "stop must be at most four texts, none of them empty", param="stop")
    return found


def most_tokens(request: Any) -> int | None:
    """The length of a chat's answer, by its newer or its older name.

    Raises:
        ApiError: 400, the two differ.
    """
    older, newer = request.max_tokens, request.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        raise ApiError(
            400, f"max_tokens is {older:,} and max_completion_tokens {newer:,}; give one of them", param="max_tokens"
        )
    limit: int | None = older if newer is None else newer
    return limit


def include_usage(request: Any) -> bool:
    """Whether a stream ends with the usage.

    Raises:
        ApiError: 400, there are options and no stream, or one that is not honoured.
    """
    options = dict(request.stream_options or {})
    if options and not request.stream:
        raise ApiError(400, "stream_options requires stream=true", param="stream_options")
    wanted = options.pop("include_usage", None)
    for name, value in options.items():
        if value not in (None, False):
            raise ApiError(400, f"stream_options.{name} is not supported", param=f"stream_options.{name}"[:80])
    return bool(wanted)
