"""Answers in the words of OpenAI's API, by the types of its own package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Protocol

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import PromptTokensDetails
from pydantic import BaseModel

from longspan.documents import Passage
from longspan.serve.generation import End, Looked, Part
from longspan.serve.sampling import Token


class Form(Protocol):
    """How one answer is told: whole, or part by part."""

    def begin(self) -> list[str]:
        """What comes before the first part."""

    def part(self, part: Part) -> str: ...

    def end(self, end: End, looked: Looked | None) -> list[str]: ...

    def whole(self, parts: Sequence[Part], end: End, looked: Looked | None) -> str: ...


def _json(answer: BaseModel) -> str:
    return answer.model_dump_json(exclude_unset=True)


def usage(end: End) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=end.prompt,
        completion_tokens=end.completion,
        total_tokens=end.prompt + end.completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=end.cached),
    )


class Chat:
    """Of ``/v1/chat/completions``; see ``Form``."""

    def __init__(self, model: str, tokenizer: Any, *, logprobs: bool, with_usage: bool) -> None:
        self._tokenizer, self._logprobs, self._with_usage = tokenizer, logprobs, with_usage
        self._head: dict[str, Any] = {"id": f"chatcmpl-{token_hex(12)}", "created": int(time.time()), "model": model}

    def begin(self) -> list[str]:
        return [self._chunk(ChoiceDelta(role="assistant", content=""))]

    def part(self, part: Part) -> str:
        return self._chunk(ChoiceDelta(content=part.text), logprobs=self._probabilities(part.tokens))

    def end(self, end: End, looked: Looked | None) -> list[str]:
        last = [self._chunk(ChoiceDelta(), finish_reason=end.finish, **_extra(looked))]
        if self._with_usage:
            last.append(self._made(ChatCompletionChunk, "chat.completion.chunk", [], usage=usage(end)))
        return last

    def whole(self, parts: Sequence[Part], end: End, looked: Looked | None) -> str:
        choice = Choice(
            index=0,
            finish_reason=end.finish,
            message=ChatCompletionMessage(role="assistant", content="".join(part.text for part in parts), refusal=None),
            logprobs=self._probabilities([token for part in parts for token in part.tokens]),
            **_extra(looked),
        )
        return self._made(ChatCompletion, "chat.completion", [choice], usage=usage(end))

    def _chunk(self, delta: ChoiceDelta, *, finish_reason: Any = None, logprobs: Any = None, **extra: Any) -> str:
        choice = ChunkChoice.model_construct(
            index=0, delta=delta, finish_reason=finish_reason, logprobs=logprobs, **extra
        )
        more = {"usage": None} if self._with_usage else {}
        return self._made(ChatCompletionChunk, "chat.completion.chunk", [choice], **more)

    def _made(self, kind: Any, name: str, choices: list[Any], **more: Any) -> str:
        return _json(kind.model_construct(object=name, choices=choices, **self._head, **more))

    def _probabilities(self, tokens: Sequence[Token]) -> Any:
        if not self._logprobs:
            return None
        found = [
            ChatCompletionTokenLogprob(
                **self._token(token.id, token.logprob),
                top_logprobs=[TopLogprob(**self._token(*one)) for one in token.likeliest],
            )
            for token in tokens
        ]
        return ChoiceLogprobs(content=found, refusal=None)

    def _token(self, id: int, logprob: float | None) -> dict[str, Any]:
        text = str(self._tokenizer.decode([id]))
        whole = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}


class Text:
    """Of ``/v1/completions``; see ``Form``."""

    def __init__(self, model: str, tokenizer: Any, *, logprobs: bool, with_usage: bool) -> None:
        self._tokenizer, self._logprobs, self._with_usage = tokenizer, logprobs, with_usage
        self._head: dict[str, Any] = {"id": f"cmpl-{token_hex(12)}", "created": int(time.time()), "model": model}
        self._characters = 0

    def begin(self) -> list[str]:
        return []

    def part(self, part: Part) -> str:
        return self._made([self._choice(part.text, part.tokens, None)], **self._no_usage())

    def end(self, end: End, looked: Looked | None) -> list[str]:
        last = [self._made([self._choice("", (), end.finish)], **self._no_usage())]
        return [*last, self._made([], usage=usage(end))] if self._with_usage else last

    def whole(self, parts: Sequence[Part], end: End, looked: Looked | None) -> str:
        tokens = [token for part in parts for token in part.tokens]
        return self._made([self._choice("".join(part.text for part in parts), tokens, end.finish)], usage=usage(end))

    def _choice(self, text: str, tokens: Sequence[Token], finish: str | None) -> CompletionChoice:
        found = self._probabilities(tokens) if self._logprobs else None
        return CompletionChoice.model_construct(index=0, text=text, finish_reason=finish, logprobs=found)

    def _no_usage(self) -> dict[str, Any]:
        return {"usage": None} if self._with_usage else {}

    def _made(self, choices: list[CompletionChoice], **more: Any) -> str:
        return _json(Completion.model_construct(object="text_completion", choices=choices, **self._head, **more))

    def _probabilities(self, tokens: Sequence[Token]) -> Logprobs:
        texts = [str(self._tokenizer.decode([token.id])) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._characters)
            self._characters += len(text)
        top = [{str(self._tokenizer.decode([id])): value for id, value in token.likeliest} for token in tokens]
        chosen = [float(token.logprob or 0.0) for token in tokens]
        return Logprobs(tokens=texts, token_logprobs=chosen, top_logprobs=top, text_offset=offsets)


def _extra(looked: Looked | None) -> dict[str, Any]:
    """What the heads looked at, where it was asked for."""
    if looked is None:
        return {}
    tokens = [{"text": text, "passages": [_passage(one) for one in own]} for text, own in looked.tokens]
    answer = [_passage(one) | {"text": one.text} for one in looked.answer]
    return {"passages": {"units": looked.votes, "answer": answer, "tokens": tokens}}


def _passage(one: Passage) -> dict[str, Any]:
    return {"start": one.first, "end": one.last, "count": one.chosen, "share": round(one.share, 6)}
