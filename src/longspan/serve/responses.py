"""``/v1/responses``: a request read as a chat, its answer told as items, and the answers that others go on from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from longspan.serve.answers import Format
from longspan.serve.errors import ApiError
from longspan.serve.events import AttendedPassages, Delta, Finished
from longspan.serve.messages import Call, Message, call_of, refuse_fields, role_of, some_text, text_of

_TEXTS = ("input_text", "output_text", "text")
_EACH = 8 * 2**10  # what Python needs for one, in characters
_KEPT = 64 * 2**20  # characters of responses with the conversations before them


def read_items(given: str | Sequence[Any]) -> list[Message]:
    """The messages of a request's ``input``.

    Raises:
        ApiError: 400, an item is not supported.
    """
    read = list[Message]()
    for n, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given):
        kind, where = item.get("type") or "message", f"input[{n}]"
        if kind == "message":
            refuse_fields(item, {"type", "role", "content", "id", "status", "phase"}, where)
            text = text_of(item.get("content"), f"{where}.content", _TEXTS)
            read.append(Message(role_of(item, where, "tool"), text))
        elif kind == "function_call":
            call = call_of(some_text(item, "call_id", where), item, where)
            if not read or read[-1].role != "assistant":
                read.append(Message("assistant", ""))
            read[-1] = replace(read[-1], calls=(*read[-1].calls, call))
        elif kind == "function_call_output":
            text = text_of(item.get("output"), f"{where}.output", _TEXTS)
            read.append(Message("tool", text, call_id=some_text(item, "call_id", where)))
        else:
            raise ApiError(
                400, f"{where} is {str(kind)[:40]!r}; this server takes messages, function_call and "
                "function_call_output", param=where,
            )  # fmt: skip
    return read


def about_response(body: Any, config: Any) -> dict[str, Any]:
    """The fields of a response that repeat its request, with the values that the model's generation config has."""
    samples = bool(config.do_sample)
    temperature = (config.temperature or 1.0) if samples else 0.0
    return {
        "model": body.model, "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {}, "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id, "store": body.store is not False,
        "temperature": temperature if body.temperature is None else body.temperature,
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"description": None, "parameters": None, "strict": False} | one for one in body.tools or ()],
        "top_p": ((config.top_p or 1.0) if samples else 1.0) if body.top_p is None else body.top_p,
    }  # fmt: skip


@dataclass(frozen=True)
class StoredResponse:
    """A response and the conversation up to it, without instructions.

    Attributes:
        document: the id of the document that it is about, or None.
    """

    body: dict[str, Any]
    messages: tuple[Message, ...]
    document: str | None


class StoredResponses:
    """The last responses, which end with the process."""

    def __init__(self) -> None:
        self._kept: dict[str, StoredResponse] = {}
        self._sizes: dict[str, int] = {}  # characters

    def keep(self, one: StoredResponse) -> None:
        """Keep a response; the oldest ones go."""
        id = one.body["id"]
        self._kept[id], self._sizes[id] = one, _EACH + len(json.dumps(one.body)) + sum(map(len, one.messages))
        while sum(self._sizes.values()) > _KEPT and len(self._kept) > 1:
            self.delete(next(iter(self._kept)))

    def get(self, id: str, status: int = 404, param: str | None = None) -> StoredResponse:
        """A response; raises ``ApiError`` of that status if there is none."""
        if id not in self._kept:
            raise ApiError(
                status, "there is no such response; only the last ones are kept, and none that store=false forbids",
                param=param, code="response_not_found" if param is None else "previous_response_not_found",
            )  # fmt: skip
        return self._kept[id]

    def delete(self, id: str) -> None:
        """Forget a response; raises as ``get``."""
        self.get(id)
        del self._kept[id], self._sizes[id]


class ResponsesFormat(Format):
    """Formats an answer of ``/v1/responses``.

    Args:
        about: fields of the response that repeat the request. keep: called with the response and its message.
    """

    def __init__(self, about: dict[str, Any], keep: Callable[[dict[str, Any], Message], None]) -> None:
        self._keep, self._events = keep, list[dict[str, str]]()
        self._response: dict[str, Any] = {
            "id": f"resp_{token_hex(24)}", "object": "response", "created_at": int(time.time()), "completed_at": None,
            "status": "in_progress", "background": False, "error": None, "incomplete_details": None,
            "max_tool_calls": None, "output": [], "prompt_cache_key": None, "safety_identifier": None, "user": None,
            "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "top_logprobs": 0,
            "text": {"format": {"type": "text"}}, "truncation": "disabled", "usage": None,
            "presence_penalty": 0, "frequency_penalty": 0, **about,
        }  # fmt: skip
        self._output, self._calls = list[dict[str, Any]](), list[Call]()
        self._open, self._sequence = False, 0  # whether a message goes on, and the number of the next event

    def begin(self) -> list[dict[str, str]]:
        self._tell("response.created", response=self._response)
        self._tell("response.in_progress", response=self._response)
        return self._told()

    def delta(self, delta: Delta) -> list[dict[str, str]]:
        if delta.text:
            self._add_text(delta.text)
        for call in delta.calls:
            self._close("completed")
            self._add_call(call)
        return self._told()

    def end(self, end: Finished, attended: AttendedPassages | None) -> list[dict[str, str]]:
        status = "incomplete" if end.finish == "length" else "completed"
        if not self._output and not self._open:
            self._add_text("")
        self._close(status)
        self._response |= {"status": status, "usage": _usage(end), "output": self._output}
        if status == "completed":
            self._response["completed_at"] = int(time.time())
        else:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        text = "".join(part["text"] for item in self._output for part in item.get("content", ()))
        self._keep(self._response, Message("assistant", text, tuple(self._calls)))
        self._tell(f"response.{status}", response=self._response)
        return self._told()

    def failed(self, body: dict[str, Any]) -> list[dict[str, str]]:
        error = {"code": "server_error", "message": body["error"]["message"]}
        self._tell("response.failed", response=self._response | {"status": "failed", "error": error})
        return self._told()

    def whole(self, deltas: Sequence[Delta], end: Finished, attended: AttendedPassages | None) -> str:
        for delta in deltas:
            self.delta(delta)
        self.end(end, attended)
        return json.dumps(self._response)

    def _add_text(self, text: str) -> None:
        if not self._open:
            self._open = True
            self._add_item({"id": f"msg_{token_hex(24)}", "type": "message", "role": "assistant", "content": []})
            self._output[-1]["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
            self._tell_part("response.content_part.added", part=self._output[-1]["content"][0])
        self._output[-1]["content"][0]["text"] += text
        if text:
            self._tell_part("response.output_text.delta", delta=text, logprobs=[])

    def _close(self, status: str) -> None:
        """End the message, if one is open."""
        if self._open:
            self._open = False
            part = self._output[-1]["content"][0]
            self._tell_part("response.output_text.done", text=part["text"], logprobs=[])
            self._tell_part("response.content_part.done", part=part)
            self._end_item(status)

    def _add_call(self, call: Call) -> None:
        self._calls.append(call)
        kind = {"id": f"fc_{token_hex(24)}", "type": "function_call", "call_id": call.id, "name": call.name}
        self._add_item(kind | {"arguments": ""})
        place = {"item_id": kind["id"], "output_index": len(self._output) - 1}
        self._tell("response.function_call_arguments.delta", delta=call.arguments, **place)
        self._tell("response.function_call_arguments.done", arguments=call.arguments, name=call.name, **place)
        self._output[-1]["arguments"] = call.arguments
        self._end_item("completed")

    def _add_item(self, item: dict[str, Any]) -> None:
        self._output.append(item | {"status": "in_progress"})
        self._tell("response.output_item.added", output_index=len(self._output) - 1, item=self._output[-1])

    def _end_item(self, status: str) -> None:
        self._output[-1]["status"] = status
        self._tell("response.output_item.done", output_index=len(self._output) - 1, item=self._output[-1])

    def _tell_part(self, kind: str, **more: Any) -> None:
        place = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, "content_index": 0}
        self._tell(kind, **place, **more)

    def _tell(self, kind: str, **more: Any) -> None:
        event = {"type": kind, "sequence_number": self._sequence, **more}
        self._sequence += 1
        self._events.append({"event": kind, "data": json.dumps(event)})

    def _told(self) -> list[dict[str, str]]:
        told, self._events = self._events, []
        return told


def _usage(end: Finished) -> dict[str, Any]:
    return {
        "input_tokens": end.prompt, "output_tokens": end.completion, "total_tokens": end.prompt + end.completion,
        "input_tokens_details": {"cached_tokens": end.cached}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
