"""Answers in the formats of OpenAI's API, built with the types of the ``openai`` package."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails
from pydantic import BaseModel

from longspan.documents import Passage
from longspan.serve.events import AttendedPassages, Delta, Finished, ShownToken
from longspan.serve.messages import Call

_DONE = {"data": "[DONE]"}


def _json(answer: BaseModel) -> str:
    return answer.model_dump_json(exclude_unset=True)


def usage(end: Finished) -> CompletionUsage:
    """The token counts of an answer, those drafted as OpenAI counts predicted ones."""
    counts = CompletionUsage(
        prompt_tokens=end.prompt,
        completion_tokens=end.completion,
        total_tokens=end.prompt + end.completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=end.cached),
    )
    if (drafts := end.drafts) is not None:
        counts.completion_tokens_details = CompletionTokensDetails(
            accepted_prediction_tokens=drafts.accepted, rejected_prediction_tokens=drafts.drafted - drafts.accepted
        )
    return counts


class Format(ABC):
    """Formats an answer, as a whole or as events of a stream, which are as ``sse_starlette`` takes them."""

    def begin(self) -> list[dict[str, str]]:
        """Events before the first delta."""
        return []

    @abstractmethod
    def delta(self, delta: Delta) -> list[dict[str, str]]:
        """Events of a part of the answer."""

    @abstractmethod
    def end(self, end: Finished, attended: AttendedPassages | None) -> list[dict[str, str]]:
        """Events after the last delta."""

    def failed(self, body: dict[str, Any]) -> list[dict[str, str]]:
        """Events instead of the rest, with the JSON of an error."""
        return [{"data": json.dumps(body)}]

    @abstractmethod
    def whole(self, deltas: Sequence[Delta], end: Finished, attended: AttendedPassages | None) -> str:
        """The JSON of an answer that is not streamed."""


class ChatFormat(Format):
    """Formats an answer of ``/v1/chat/completions``."""

    def __init__(self, model: str, *, logprobs: bool, with_usage: bool) -> None:
        self._logprobs, self._with_usage, self._calls = logprobs, with_usage, 0
        self._identity: dict[str, Any] = {
            "id": f"chatcmpl-{token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def begin(self) -> list[dict[str, str]]:
        return [self._chunk(ChoiceDelta(role="assistant", content=""))]

    def delta(self, delta: Delta) -> list[dict[str, str]]:
        told = ChoiceDelta(content=delta.text)
        if delta.calls:
            told.tool_calls = [
                ChoiceDeltaToolCall(index=self._calls + n, **_call(one)) for n, one in enumerate(delta.calls)
            ]
            self._calls += len(delta.calls)
        return [self._chunk(told, logprobs=self._probabilities(delta.tokens))]

    def end(self, end: Finished, attended: AttendedPassages | None) -> list[dict[str, str]]:
        last = [self._chunk(ChoiceDelta(), finish_reason=end.finish, **_passages_field(attended))]
        if self._with_usage:
            last.append({"data": self._object(ChatCompletionChunk, "chat.completion.chunk", [], usage=usage(end))})
        return [*last, _DONE]

    def whole(self, deltas: Sequence[Delta], end: Finished, attended: AttendedPassages | None) -> str:
        text, calls = text_of(deltas), [call for delta in deltas for call in delta.calls]
        message = ChatCompletionMessage(role="assistant", content=text, refusal=None, annotations=[])
        if calls:
            message.content = text or None
            message.tool_calls = [ChatCompletionMessageFunctionToolCall(**_call(one)) for one in calls]
        choice = Choice(
            index=0,
            finish_reason=end.finish,
            message=message,
            logprobs=self._probabilities([token for delta in deltas for token in delta.tokens]),
            **_passages_field(attended),
        )
        return self._object(ChatCompletion, "chat.completion", [choice], usage=usage(end))

    def _chunk(
        self, delta: ChoiceDelta, *, finish_reason: Any = None, logprobs: Any = None, **extra: Any
    ) -> dict[str, str]:
        choice = ChunkChoice.model_construct(
            index=0, delta=delta, finish_reason=finish_reason, logprobs=logprobs, **extra
        )
        more = {"usage": None} if self._with_usage else {}
        return {"data": self._object(ChatCompletionChunk, "chat.completion.chunk", [choice], **more)}

    def _object(self, kind: Any, name: str, choices: list[Any], **more: Any) -> str:
        return _json(kind.model_construct(object=name, choices=choices, **self._identity, **more))

    def _probabilities(self, tokens: Sequence[ShownToken]) -> Any:
        if not self._logprobs:
            return None
        content = [
            ChatCompletionTokenLogprob(
                **_token(one.text, one.logprob), top_logprobs=[TopLogprob(**_token(*other)) for other in one.likeliest]
            )
            for one in tokens
        ]
        return ChoiceLogprobs(content=content, refusal=None)


class CompletionFormat(Format):
    """Formats an answer of ``/v1/completions``."""

    def __init__(self, model: str, *, logprobs: bool, with_usage: bool) -> None:
        self._logprobs, self._with_usage = logprobs, with_usage
        self._identity: dict[str, Any] = {"id": f"cmpl-{token_hex(12)}", "created": int(time.time()), "model": model}

    def delta(self, delta: Delta) -> list[dict[str, str]]:
        return [{"data": self._object([self._choice(delta.text, delta.tokens, None)], **self._no_usage())}]

    def end(self, end: Finished, attended: AttendedPassages | None) -> list[dict[str, str]]:
        last = [{"data": self._object([self._choice("", (), end.finish)], **self._no_usage())}]
        if self._with_usage:
            last.append({"data": self._object([], usage=usage(end))})
        return [*last, _DONE]

    def whole(self, deltas: Sequence[Delta], end: Finished, attended: AttendedPassages | None) -> str:
        tokens = [token for delta in deltas for token in delta.tokens]
        return self._object([self._choice(text_of(deltas), tokens, end.finish)], usage=usage(end))

    def _choice(self, text: str, tokens: Sequence[ShownToken], finish: str | None) -> CompletionChoice:
        logprobs = self._probabilities(tokens) if self._logprobs else None
        return CompletionChoice.model_construct(index=0, text=text, finish_reason=finish, logprobs=logprobs)

    def _no_usage(self) -> dict[str, Any]:
        return {"usage": None} if self._with_usage else {}

    def _object(self, choices: list[CompletionChoice], **more: Any) -> str:
        return _json(Completion.model_construct(object="text_completion", choices=choices, **self._identity, **more))

    def _probabilities(self, tokens: Sequence[ShownToken]) -> Logprobs:
        return Logprobs(
            tokens=[one.text for one in tokens],
            token_logprobs=[float(one.logprob or 0.0) for one in tokens],
            top_logprobs=[_by_text(one.likeliest) for one in tokens],
            text_offset=[one.begin for one in tokens],
        )


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    whole = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": whole}


def _by_text(likeliest: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The likeliest tokens by their texts; of several with one text, as parts of characters are, the first."""
    found: dict[str, float] = {}
    for text, logprob in likeliest:
        found.setdefault(text, logprob)
    return found


def text_of(deltas: Sequence[Delta]) -> str:
    """The text of an answer."""
    return "".join(delta.text for delta in deltas)


def _passages_field(attended: AttendedPassages | None) -> dict[str, Any]:
    """The extra field ``passages``; none unless it was requested."""
    if attended is None:
        return {}
    failed = {} if attended.error is None else {"error": attended.error}
    tokens = [{"text": text, "passages": [_passage_object(one) for one in own]} for text, own in attended.tokens]
    answer = [_passage_object(one) | {"text": one.text} for one in attended.answer]
    return {"passages": {"answer": answer, "tokens": tokens, **failed}}


def _passage_object(one: Passage) -> dict[str, Any]:
    return {
        "start": one.begin,
        "end": one.begin + one.last - one.first,
        "lift": round(one.lift, 2),
        "share": round(one.share, 6),
    }
