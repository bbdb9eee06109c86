"""Messages as the ids that the model reads: those of documents, and of what it said itself, as they were then."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from longspan.documents import Document
from longspan.documents.layout import encode, encode_text, head_of
from longspan.documents.manifest import Layout
from longspan.serve.errors import ApiError

_MOST = 4096  # answers that are remembered
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@dataclass(frozen=True)
class Prompt:
    """The ids of a prompt, ``[T]``, and the document that it begins with."""

    ids: Tensor
    document: Document | None


class Said:
    """The ids of what was answered to a prompt, as another tokenization of the same text would be another prompt."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = Lock()

    def remember(self, prompt: Tensor, text: str, ids: Tensor) -> None:
        with self._lock:
            self._known[self._key(prompt, text)] = ids
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def ids_of(self, prompt: Tensor, text: str) -> Tensor | None:
        key = self._key(prompt, text)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    @staticmethod
    def _key(prompt: Tensor, text: str) -> bytes:
        return hashlib.sha256(prompt.contiguous().numpy().tobytes() + text.encode("utf-8", "surrogatepass")).digest()


class Prompts:
    """Encodes prompts, by any thread, one at a time.

    Args:
        tokenizer: nobody else's, since a tokenizer keeps options of its last call.
        layout: where a text and a question stand. documents: those that can be asked.
        most: characters of a prompt; a longer one is refused before it is encoded.
    """

    def __init__(
        self,
        tokenizer: Any,
        layout: Layout,
        documents: Callable[[], Iterable[Document]],
        said: Said,
        *,
        most: int,
    ) -> None:
        self._tokenizer, self._layout, self._documents, self._said = tokenizer, layout, documents, said
        self._most, self._lock = most, Lock()

    def chat(self, messages: Sequence[Any], document: Document | None) -> Prompt:
        """The ids of a chat, after those of a document where one is named.

        A chat whose text begins with that of a document, as the document's layout has it, begins with its ids.

        Raises:
            ApiError: 400, the messages are not supported or too long.
        """
        read = read_messages(messages)
        self._check(sum(len(message.text) for message in read), "messages")
        with self._lock:
            if document is not None:
                turns = _turns(read, f"{document.layout.joint}", document.layout, with_document=True)
                return Prompt(self._joined(document.contents.ids, turns), document)
            if self._layout.name == "chat":
                turns = self._rendered(read)
            else:
                turns = _turns(read, self._layout.head, self._layout, with_document=False)
            found = self._begins(turns[0])
            if found is not None:
                turns[0] = turns[0].removeprefix(found.layout.head + str(found.text))
                return Prompt(self._joined(found.contents.ids, turns), found)
            if self._layout.name == "chat":
                return Prompt(self._joined(torch.empty(0, dtype=torch.int64), turns), None)
            turns[0] = turns[0].removeprefix(self._layout.head)
            return Prompt(self._joined(head_of(self._tokenizer, self._layout), turns), None)

    def completion(self, prompt: str | list[int]) -> Prompt:
        """The ids of a text, after those of a document that it begins with.

        Raises:
            ApiError: 400, the text is too long.
        """
        if not isinstance(prompt, str):
            return Prompt(torch.tensor(prompt, dtype=torch.int64), None)
        self._check(len(prompt), "prompt")
        with self._lock:
            found = self._begins(prompt)
            if found is not None:
                rest = encode(self._tokenizer, prompt.removeprefix(found.layout.head + str(found.text)))
                return Prompt(torch.cat((found.contents.ids, rest)), found)
            ids = self._tokenizer(prompt, verbose=False)["input_ids"]
            return Prompt(torch.tensor(ids, dtype=torch.int64), None)

    def _check(self, characters: int, field: str) -> None:
        if characters > self._most:
            raise ApiError(
                400, f"{field} has {characters:,} characters, and at most {self._most:,} are encoded; upload a longer "
                "text to /v1/documents", param=field, code="context_length_exceeded",
            )  # fmt: skip

    def _begins(self, text: str) -> Document | None:
        """The longest document that a text begins with, up to where a question stands."""
        found = [one for one in self._documents() if one.text and _starts(text, one)]
        return max(found, key=lambda one: one.tokens, default=None)

    def _joined(self, ids: Tensor, turns: Sequence[str]) -> Tensor:
        """``ids``, then what stands around the answers and the answers in turn."""
        for n, text in enumerate(turns):
            if n % 2:
                said = self._said.ids_of(ids, text)
                ids = torch.cat((ids, encode_text(self._tokenizer, text)[0] if said is None else said))
            else:
                ids = torch.cat((ids, encode(self._tokenizer, text)))
        return ids

    def _rendered(self, messages: Sequence[Message]) -> list[str]:
        """The chat template, filled and taken apart at the answers."""
        marks = [f"\ue0d0{n}\ue0d1" for n in range(len(messages))]
        filled = [
            {"role": one.role, "content": mark if one.role == "assistant" else one.text}
            for one, mark in zip(messages, marks, strict=True)
        ]
        text = self._fill(filled)
        answers = [(mark, one.text) for one, mark in zip(messages, marks, strict=True) if one.role == "assistant"]
        if any(text.count(mark) != 1 for mark, _ in answers):  # a template may change what it is given
            return [self._fill([{"role": one.role, "content": one.text} for one in messages])]
        turns = []
        for mark, answer in answers:
            before, _, text = text.partition(mark)
            turns += [before, answer]
        return [*turns, text]

    def _fill(self, messages: list[dict[str, str]]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template raises what it likes
            raise ApiError(
                400, f"the chat template does not take these messages: {' '.join(str(error).split())}", param="messages"
            ) from None


def characters_of(tokenizer: Any, tokens: int) -> int:
    """The most characters that so many tokens can encode: all of them the longest of the vocabulary.

    Where a tokenizer normalizes its text, one character of a token may have been up to four of the text (NFC).
    """
    longest = max(map(len, tokenizer.get_vocab()), default=1)
    normalizes = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None) is not None
    return tokens * longest * (4 if normalizes else 1)


def _starts(text: str, document: Document) -> bool:
    """Whether a text begins with a document up to where a question stands; nothing is copied."""
    at = 0
    for part in (document.layout.head, str(document.text), document.layout.joint):
        if not text.startswith(part, at):
            return False
        at += len(part)
    return True


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """Roles and texts of the API's messages.

    Raises:
        ApiError: 400, one is of a role or has a content that no text is.
    """
    read = []
    for n, message in enumerate(messages):
        role, where = message.get("role"), f"messages[{n}]"
        if not isinstance(role, str) or role not in _ROLES:
            raise ApiError(
                400, f"{where}.role {role!r} is not supported; there are {', '.join(_ROLES)}", param=f"{where}.role"
            )
        for name in message.keys() - {"role", "content"}:
            if message[name] not in (None, [], {}):
                raise ApiError(400, f"{where}.{name} is not supported; leave it out", param=f"{where}.{name}")
        read.append(Message(_ROLES[role], _text(message.get("content"), f"{where}.content")))
    if not read:
        raise ApiError(400, "messages is empty; there is nothing to answer", param="messages")
    if read[-1].role != "user":
        raise ApiError(400, "the last of messages must be the user's", param="messages")
    return read


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and content:
        for n, part in enumerate(content):
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                raise ApiError(
                    400, f"{where}[{n}] is not a text, and this model reads nothing else", param=f"{where}[{n}]"
                )
        text = "".join(part["text"] for part in content)
    else:
        raise ApiError(400, f"{where} must be a text or a list of texts", param=where)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ApiError(400, f"{where} has half of a surrogate pair, which is no character", param=where)
    return text


def _turns(messages: Sequence[Message], first: str, layout: Layout, *, with_document: bool) -> list[str]:
    """What stands around the answers and the answers in turn, in a layout of texts and questions."""
    turns, before = [], first
    asked: list[str] = []
    for message in messages:
        if with_document and message.role == "system":
            raise ApiError(
                400, "a system message would stand before the document, which was read without one; say it in the "
                "question", param="messages",
            )  # fmt: skip
        if message.role != "assistant":
            asked.append(message.text)
            continue
        turns += [f"{before}{layout.joint.join(asked)}{layout.end}", message.text]
        before, asked = layout.turn, []
    return [*turns, f"{before}{layout.joint.join(asked)}{layout.end}"]
