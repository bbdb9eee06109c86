"""Functions that a model may call: in the prompt by its chat template, in the answer as calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from longspan.serve.errors import ApiError
from longspan.serve.messages import Call, call_of, characters, refuse_fields

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE = "longspan_probe"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
# The form of the templates of Qwen and SmolLM, read by transformers' parser if a tokenizer has no form of its own.
_PLAIN: dict[str, Any] = {
    "start_anchor": "\ue0d0",
    "fields": {
        "tool_calls": {
            "open_pattern": _OPEN,
            "close": _CLOSE,
            "repeats": True,
            "content": "json",
            "content_args": {"allow_non_json": True},
        },
        "content": {"content": "text"},
    },
}


@dataclass(frozen=True)
class Tools:
    """The functions of a request.

    Attributes:
        functions: as chat templates take them.
        required: whether the answer must be a call. named: the function that it must call; "" for any.
        single: whether it may have one call at most.
    """

    functions: tuple[dict[str, Any], ...]
    required: bool = False
    named: str = ""
    single: bool = False

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [one["function"]["name"] for one in self.functions]


def read_tools(tools: Sequence[Any] | None, choice: Any, parallel: bool | None, *, nested: bool) -> Tools | None:
    """The functions of a request, None if the model may call none.

    Args:
        choice: the field ``tool_choice``. parallel: whether an answer may have several calls.
        nested: whether a function stands in a field ``function``, as in chats; else beside its type.

    Raises:
        ApiError: 400, one is no function, or the choice cannot be held.
    """
    functions = tuple(_function(one, f"tools[{n}]", nested=nested) for n, one in enumerate(tools or ()))
    names = [one["function"]["name"] for one in functions]
    if len(set(names)) < len(names):
        raise ApiError(400, "two of the tools have one name", param="tools")
    named: Any = ""
    known = choice in (None, "auto", "none") or (choice == "required" and functions)
    if isinstance(choice, dict):
        about = choice.get("function") if nested else choice
        named = about.get("name") if choice.get("type") == "function" and isinstance(about, dict) else None
        known = named in names
    if not known:
        raise ApiError(
            400, f"tool_choice {choice!r:.99} cannot be held; use 'auto', 'none', 'required' or one of the tools",
            param="tool_choice",
        )  # fmt: skip
    if choice == "none" or not functions:
        return None
    required = isinstance(choice, dict) or choice == "required"
    return Tools(functions, required, named or (names[0] if required and len(names) == 1 else ""), parallel is False)


def _function(tool: Mapping[str, Any], where: str, *, nested: bool) -> dict[str, Any]:
    about = tool.get("function") if nested else tool
    if tool.get("type") != "function" or not isinstance(about, dict):
        raise ApiError(400, f"{where} must be a function; other types are not supported", param=where)
    refuse_fields(about, {"type", "name", "description", "parameters", "strict"}, where)
    name, says, parameters = about.get("name"), about.get("description") or "", about.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(400, f"{where}.name must be at most 64 letters, digits, '_', '.' or '-'", param=f"{where}.name")
    if not isinstance(says, str) or not isinstance(parameters, dict | None):
        raise ApiError(400, f"{where} must have a text as description and an object as parameters", param=where)
    if about.get("strict"):
        raise ApiError(
            400, f"{where}.strict cannot be held, since answers are not constrained to a schema; set it to false",
            param=f"{where}.strict",
        )  # fmt: skip
    function = {"name": name, "description": says, "parameters": parameters or {"type": "object", "properties": {}}}
    try:
        characters(json.dumps(function, ensure_ascii=False), where)
    except (ValueError, RecursionError):
        raise ApiError(400, f"{where} is nested too deeply", param=where) from None
    return {"type": "function", "function": function}


class CallForm:
    """The form in which a chat template shows functions and their calls.

    Args:
        tokenizer: used by no other thread meanwhile.

    Attributes:
        special: whether special tokens may stand around calls.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own = getattr(tokenizer, "response_template", None)
        self.special = self._own is not None

    @cached_property
    def refusal(self) -> str | None:
        """Why the model can be given no functions; None if it can."""
        if not getattr(self._tokenizer, "chat_template", None):
            return "the tokenizer has no chat template"
        tools = Tools(({"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {}}},))
        try:
            if _PROBE not in self._fill([{"role": "user", "content": "x"}], tools):
                return "the model's chat template takes no tools"
            whole, _ = self._called(tools, _PROBE)
        except Exception as error:  # a template raises what it likes
            return f"the model's chat template takes no tools ({' '.join(str(error).split())[:200]})"
        if self._own is None and not re.search(rf'{_OPEN}\s*{{\s*"name":\s*"{_PROBE}"', whole):
            return (
                "the model's chat template has another form of calls than <tool_call>{json}</tool_call>, and its "
                "tokenizer has no response_template to read it by"
            )
        return None

    def begun(self, tools: Tools) -> str:
        """The text that an answer begins with if it must be a call.

        Raises:
            ApiError: 400, the chat template begins answers otherwise.
        """
        if not tools.required:
            return ""
        whole, prompt = self._called(tools, tools.named or _PROBE)
        if not whole.startswith(prompt):
            raise ApiError(
                400, "tool_choice cannot be held: the model's chat template begins an answer otherwise than a call; "
                "use 'auto'", param="tool_choice",
            )  # fmt: skip
        begun = whole.removeprefix(prompt).partition(_PROBE)[0]
        return begun.rstrip('"') if tools.named else begun

    def reader(self, tools: Tools, begun: str, prompt: str) -> CallReader:
        """Reads the calls of an answer to a prompt, of which the end is given, ``begun`` included."""
        return CallReader(self._own or _PLAIN, tools, begun if self._own is None else prompt)

    def _called(self, tools: Tools, name: str) -> tuple[str, str]:
        """A chat with the call of a function, and the same up to where the answer begins."""
        call = {"type": "function", "function": {"name": name, "arguments": {_PROBE: 0}}}
        asked: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        return self._fill([*asked, answer], tools, generate=False), self._fill(asked, tools)

    def _fill(self, messages: list[dict[str, Any]], tools: Tools, *, generate: bool = True) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=list(tools.functions), tokenize=False, add_generation_prompt=generate
            )
        )


class CallReader:
    """Tells the calls in an answer from its text, as it comes.

    Args:
        form: for transformers' parser of answers. before: the text before the answer that is part of it.

    Attributes:
        calls: those so far.
    """

    def __init__(self, form: Any, tools: Tools, before: str) -> None:
        self._parser: Any = ResponseParser(form, prefix=before, tools=list(tools.functions))
        self._marks = (_OPEN, _CLOSE) if form is _PLAIN else ("", "")
        self._tools, self._inside = tools, ""  # text of a call that is not complete
        self._space = ""  # at the end of what was shown: it is dropped if a call follows
        self.calls: list[Call] = []

    def feed(self, text: str) -> tuple[str, list[Call]]:
        """The text to show and the calls that came with a part of the answer."""
        return self._read(lambda: self._parser.feed(text), text, self._marks[1])

    def end(self) -> tuple[str, list[Call]]:
        """The rest, if nothing follows."""
        text, calls = self._read(lambda: self._parser.finalize()[1], "", "")
        return text if self.calls else text + self._space, calls

    @property
    def lacking(self) -> bool:
        """Whether there has to be a call and is none of a function of the request."""
        return self._tools.required and not any(call.name in self._tools.names for call in self.calls)

    def _read(self, events: Callable[[], list[dict[str, Any]]], text: str, close: str) -> tuple[str, list[Call]]:
        if self._parser is None:
            return text, []
        try:
            return self._told(events(), close)
        except Exception:  # a form raises what it likes if a call is not in it: it is text, and so is the rest
            self._parser, space, self._space = None, self._space, ""
            return space + self._inside + text, []

    def _told(self, events: Iterable[Mapping[str, Any]], close: str) -> tuple[str, list[Call]]:
        shown, calls = self._space, list[Call]()
        for event in events:
            if event.get("field") != "tool_calls":
                shown += event.get("text", "")
            elif event["type"] == "region_chunk":
                self._inside += event["text"]
            elif event["type"] == "region_close":
                call, inside, self._inside = _call(event["value"]), self._inside, ""
                if call is None:
                    shown += f"{self._marks[0]}{inside}{close}"
                elif not (self._tools.single and self.calls):
                    self.calls.append(call)
                    calls.append(call)
                    shown = shown.rstrip()
        told = shown.rstrip()
        self._space = shown[len(told) :]
        return told, calls


def _call(value: Any) -> Call | None:
    """A call that a parser read; None for what is none."""
    about = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(about, dict):
        return None
    name, arguments = about.get("name"), about.get("arguments", about.get("parameters", {}))
    try:
        told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return call_of(f"call_{token_hex(12)}", {"name": name, "arguments": told}, "")
    except (ApiError, RecursionError, TypeError, ValueError):  # what no request could give back
        return None
