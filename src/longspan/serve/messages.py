"""Messages of a chat, as OpenAI's API has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.serve.errors import ApiError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OWN = 8  # characters that a template puts around a message, at least
_LONGEST_NAME = 256  # characters of a name or an id
_FIELDS = {"assistant": {"tool_calls"}, "tool": {"tool_call_id", "name"}}  # beside role and content


@dataclass(frozen=True)
class Call:
    """A model's call of a function; ``arguments`` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A message of a chat.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        calls: of the assistant. call_id: of the call that a tool's message is the result of.
    """

    role: str
    text: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""

    def __len__(self) -> int:
        """Characters, with some for the message itself."""
        calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in self.calls)
        return _OWN + len(self.text) + calls + len(self.call_id)


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages of a request.

    Raises:
        ApiError: 400, a role or a content is not supported.
    """
    read = []
    for n, message in enumerate(messages):
        where = f"messages[{n}]"
        role = role_of(message, where)
        refuse_fields(message, {"role", "content"} | _FIELDS.get(role, set()), where)
        calls = _calls(message.get("tool_calls") or [], f"{where}.tool_calls")
        content = message.get("content")
        text = "" if calls and content is None else text_of(content, f"{where}.content")
        call_id = some_text(message, "tool_call_id", where) if role == "tool" else ""
        read.append(Message(role, text, calls, call_id))
    check_last(read, "messages")
    return read


def role_of(message: Mapping[str, Any], where: str, *others: str) -> str:
    """A message's role, none of ``others``; raises ``ApiError`` 400."""
    role, known = message.get("role"), [one for one in _ROLES if one not in others]
    if not isinstance(role, str) or role not in known:
        raise ApiError(
            400, f"{where}.role {role!r:.80} is not supported; use one of {', '.join(known)}", param=f"{where}.role"
        )
    return _ROLES[role]


def check_last(messages: Sequence[Message], field: str) -> None:
    """Raise ``ApiError`` 400 if there is nothing to answer."""
    if not messages:
        raise ApiError(400, f"{field} is empty; there is nothing to answer", param=field)
    if messages[-1].role not in ("user", "tool"):
        raise ApiError(400, f"the last of the {field} must be the user's or a tool's", param=field)


def refuse_fields(given: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise ``ApiError`` 400 for a field that is not known and says something."""
    for name in given.keys() - known:
        if given[name] not in (None, [], {}):
            raise ApiError(400, f"{where}.{name[:80]} is not supported; leave it out", param=f"{where}.{name[:80]}")


def text_of(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a message's content, a string or a list of parts of these types.

    Raises:
        ApiError: 400, it is something else, such as an image.
    """
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and content:
        for n, part in enumerate(content):
            if not (isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else None
                named = f" but {kind[:40]!r}" if isinstance(kind, str) and kind not in kinds else ""
                raise ApiError(
                    400, f"{where}[{n}] is not a text{named}, and this model reads only text", param=f"{where}[{n}]"
                )
        text = "".join(part["text"] for part in content)
    else:
        raise ApiError(400, f"{where} must be a text or a list of texts", param=where)
    return characters(text, where)


def some_text(given: Mapping[str, Any], name: str, where: str) -> str:
    """A name or an id, which must be there; raises ``ApiError`` 400."""
    text = given.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_NAME:
        raise ApiError(
            400, f"{where}.{name} must be a text of 1 to {_LONGEST_NAME} characters", param=f"{where}.{name}"
        )
    return characters(text, f"{where}.{name}")


def call_of(id: str, given: Mapping[str, Any], where: str) -> Call:
    """A call of an earlier answer, by its ``name`` and ``arguments``.

    Raises:
        ApiError: 400, there are none, or the arguments are no JSON object.
    """
    name, arguments = some_text(given, "name", where), given.get("arguments") or "{}"
    try:
        found = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(400, f"{where}.arguments must be the text of a JSON object", param=f"{where}.arguments")
    return Call(id, name, arguments)


def characters(text: str, where: str) -> str:
    """The text; raises ``ApiError`` 400 if half of a surrogate pair is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{where} has half of a surrogate pair, which is not a character", param=where) from None
    return text


def _calls(given: Any, where: str) -> tuple[Call, ...]:
    """The calls in an assistant's message of a chat."""
    calls = list[Call]()
    for n, call in enumerate(given if isinstance(given, list) else [None]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise ApiError(400, f"{where} must be a list of calls of functions", param=where)
        calls.append(call_of(some_text(call, "id", f"{where}[{n}]"), function, f"{where}[{n}].function"))
    return tuple(calls)
