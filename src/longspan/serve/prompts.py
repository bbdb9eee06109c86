"""Encodes messages. Documents and previous answers of the model keep the ids that they had."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from longspan.documents import Document
from longspan.documents.layout import encode, head_of
from longspan.documents.manifest import Layout
from longspan.serve.errors import ApiError
from longspan.serve.messages import Message, characters
from longspan.serve.tools import CallForm, CallReader, Tools

_MAX_ANSWERS = 4096  # answers that are remembered
_MARK = re.compile("\ue0d0([0-9]+)\ue0d1")  # stands for an answer, by its number among the messages


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        ids: its tokens ``[T]``. document: that it begins with. digest: of a chat; see ``PreviousAnswers``.
        reader: of the calls in its answer. special: whether that needs the text of special tokens.
    """

    ids: Tensor
    document: Document | None
    digest: Any = None
    reader: CallReader | None = None
    special: bool = False


class PreviousAnswers:
    """The ids of previous answers, by prompt and text: encoding the text again may give others, which no cache has.

    A prompt is known by the digest of its document's ids and of the texts after them: which ids these have depends on
    the answers that are known.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = Lock()

    def remember(self, prompt: Any, text: str, ids: Tensor) -> None:
        """Remember the ``ids`` ``[A]`` of an answer to the prompt of a digest."""
        key = self._key(prompt, text)
        with self._lock:
            self._ids[key] = ids
            while len(self._ids) > _MAX_ANSWERS:
                self._ids.popitem(last=False)

    def ids_of(self, prompt: Any, text: str) -> Tensor | None:
        """The ids ``[A]`` of an answer to the prompt of a digest; None if there was none."""
        key = self._key(prompt, text)
        with self._lock:
            if key in self._ids:
                self._ids.move_to_end(key)
            return self._ids.get(key)

    @staticmethod
    def _key(prompt: Any, text: str) -> bytes:
        digest = prompt.copy()
        digest.update(b"\xff")  # no text has it, so that what is asked and what is answered stay apart
        digest.update(text.encode("utf-8", "surrogatepass"))
        key: bytes = digest.digest()
        return key


class Prompts:
    """Encodes prompts, one at a time; any thread may call it.

    Args:
        tokenizer: used by nothing else, since a tokenizer keeps options of its last call.
        layout: where a text and a question stand. documents: those that are read.
        max_characters: characters of a prompt; a longer one is refused before it is encoded.
    """

    def __init__(
        self,
        tokenizer: Any,
        layout: Layout,
        documents: Callable[[], Iterable[Document]],
        previous_answers: PreviousAnswers,
        *,
        max_characters: int,
    ) -> None:
        self._tokenizer, self._layout = tokenizer, layout
        self._documents, self._previous_answers = documents, previous_answers
        self._max_characters, self._lock = max_characters, Lock()
        self._form = CallForm(tokenizer)

    def chat(self, messages: Sequence[Message], document: Document | None, tools: Tools | None = None) -> Prompt:
        """The ids of a chat, after those of a document if one is named.

        A chat whose text begins with that of a document, as the document's layout has it, begins with its ids.

        Raises:
            ApiError: 400, the messages are too long, or the chat template or the document has no place for them.
        """
        self._check(sum(map(len, messages)), "messages")
        with self._lock:
            if tools is not None or any(one.calls or one.role == "tool" for one in messages):
                self._check_tools(document)
            if tools is not None:
                self._check(sum(len(str(one)) for one in tools.functions), "tools")
                turns = self._template_turns(messages, tools)
                begun = self._form.begun(tools)
                turns[-1] += begun
                reader = self._form.reader(tools, begun, turns[-1])
                made = self._encode_turns(torch.empty(0, dtype=torch.int64), turns, None)
                return replace(made, reader=reader, special=self._form.special)
            if document is not None:
                turns = _layout_turns(messages, f"{document.layout.joint}", document.layout, with_document=True)
                return self._encode_turns(document.contents.ids, turns, document)
            if self._layout.templated:
                turns = self._template_turns(messages)
            else:
                turns = _layout_turns(messages, self._layout.head, self._layout, with_document=False)
            leading = self._leading_document(turns[0])
            if leading is not None:
                turns[0] = turns[0].removeprefix(leading.layout.head + str(leading.text))
                return self._encode_turns(leading.contents.ids, turns, leading)
            if self._layout.templated:
                return self._encode_turns(torch.empty(0, dtype=torch.int64), turns, None)
            turns[0] = turns[0].removeprefix(self._layout.head)
            return self._encode_turns(head_of(self._tokenizer, self._layout), turns, None)

    def completion(self, prompt: str | list[int]) -> Prompt:
        """The ids of a text, after those of a document that it begins with.

        Raises:
            ApiError: 400, the text is too long.
        """
        if not isinstance(prompt, str):
            return Prompt(torch.tensor(prompt, dtype=torch.int64), None)
        self._check(len(prompt), "prompt")
        with self._lock:
            leading = self._leading_document(prompt)
            if leading is not None:
                rest = encode(self._tokenizer, prompt.removeprefix(leading.layout.head + str(leading.text)))
                return Prompt(torch.cat((leading.contents.ids, rest)), leading)
            ids = self._tokenizer(prompt, verbose=False)["input_ids"]
            return Prompt(torch.tensor(ids, dtype=torch.int64), None)

    def _check(self, characters: int, field: str) -> None:
        if characters > self._max_characters:
            raise ApiError(
                400, f"{field} has {characters:,} characters, and at most {self._max_characters:,} are encoded; "
                "upload a longer text to /v1/documents", param=field, code="context_length_exceeded",
            )  # fmt: skip

    def _check_tools(self, document: Document | None) -> None:
        refusal = self._form.refusal if self._layout.templated else f"the layout of prompts is {self._layout.name}"
        if document is not None:
            refusal = "a document has no place for them before its text"
        if refusal is not None:
            raise ApiError(
                400, f"tools cannot be used here: {refusal}; leave out tools and their results", param="tools",
                code="unsupported_parameter",
            )  # fmt: skip

    def _leading_document(self, text: str) -> Document | None:
        """The longest document that a text begins with, up to where a question stands."""
        leading = [one for one in self._documents() if one.text and _starts_with(text, one)]
        return max(leading, key=lambda one: one.tokens, default=None)

    def _encode_turns(self, ids: Tensor, turns: Sequence[str], document: Document | None) -> Prompt:
        """``ids``, followed by the ids of the texts, which alternate between prompts and answers.

        Only an answer of this server has ids of its own. All text between two of these is encoded as one: many
        tokenizers put a space before what they encode by itself.
        """
        parts, text, digest = [ids], [turns[0]], hashlib.sha256(ids.contiguous().numpy().data)
        digest.update(turns[0].encode())
        for answer, after in zip(turns[1::2], turns[2::2], strict=True):
            known = self._previous_answers.ids_of(digest, answer)
            if known is None:
                text += [answer, after]
            else:
                parts += [encode(self._tokenizer, "".join(text)), known]
                text = [after]
            digest.update(f"{answer}{after}".encode())
        return Prompt(torch.cat([*parts, encode(self._tokenizer, "".join(text))]), document, digest)

    def _template_turns(self, messages: Sequence[Message], tools: Tools | None = None) -> list[str]:
        """The filled chat template, split at the answers, or whole if it changes one of the answers.

        Templates take out what a model thought before an answer, or blanks around it; the answer's own ids would put
        them back.
        """
        filled = self._fill_template(messages, tools)
        answers = [n for n, one in enumerate(messages) if one.role == "assistant" and not one.calls]
        marked = list(messages)
        for n in answers:
            marked[n] = replace(messages[n], text=f"\ue0d0{n}\ue0d1")
        turns = _MARK.split(self._fill_template(marked, tools))
        if turns[1::2] == [str(n) for n in answers]:
            turns[1::2] = [messages[n].text for n in answers]
        return turns if "".join(turns) == filled else [filled]

    def _fill_template(self, messages: Sequence[Message], tools: Tools | None) -> str:
        functions = None if tools is None else list(tools.functions)
        names = {call.id: call.name for one in messages for call in one.calls}
        told = [_for_template(one, names) for one in messages]
        try:
            filled = str(
                self._tokenizer.apply_chat_template(told, tools=functions, tokenize=False, add_generation_prompt=True)
            )
        except Exception as error:  # a template raises what it likes
            raise ApiError(
                400, f"the chat template rejects these messages: {' '.join(str(error).split())}", param="messages"
            ) from None
        return characters(filled, "messages")


def _for_template(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    """A message as chat templates take it; ``names`` are those of the called functions, by the ids of the calls."""
    told: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        told["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": json.loads(one.arguments)}}
            for one in message.calls
        ]
    if message.role == "tool":
        told |= {"tool_call_id": message.call_id, "name": names.get(message.call_id, "")}
    return told


def characters_of(tokenizer: Any, tokens: int) -> int:
    """The most characters that so many tokens can encode: all of them the longest of the vocabulary.

    If a tokenizer normalizes its text, one character of a token may have been up to four of the text (NFC).
    """
    longest = max(map(len, tokenizer.get_vocab()), default=1)
    normalizes = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None) is not None
    return tokens * longest * (4 if normalizes else 1)


def _starts_with(text: str, document: Document) -> bool:
    """Whether a text begins with a document up to where a question stands; nothing is copied."""
    at = 0
    for part in (document.layout.head, str(document.text), document.layout.joint):
        if not text.startswith(part, at):
            return False
        at += len(part)
    return True


def _layout_turns(messages: Sequence[Message], first: str, layout: Layout, *, with_document: bool) -> list[str]:
    """Prompts and answers in turn, in a layout of texts and questions."""
    turns, before = [], first
    questions: list[str] = []
    for message in messages:
        if with_document and message.role == "system":
            raise ApiError(
                400, "a system message would stand before the document, which was read without one; say it in the "
                "question", param="messages",
            )  # fmt: skip
        if message.role != "assistant":
            questions.append(message.text)
            continue
        turns += [f"{before}{layout.joint.join(questions)}{layout.end}", message.text]
        before, questions = layout.turn, []
    return [*turns, f"{before}{layout.joint.join(questions)}{layout.end}"]
