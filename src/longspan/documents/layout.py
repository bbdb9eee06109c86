"""Where a text and a question stand in what the model reads: its chat template, or a plain layout."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from longspan.documents.manifest import Layout
from longspan.errors import DocumentError
from longspan.text.encode import beginning
from longspan.text.encode import encode as plain_ids

PLAIN = Layout("plain", "", "\n", "", "\n")
_PLACES = re.compile(r"\{(document|question)\}")
_MARKS = ("\ue0d0document\ue0d1", "\ue0d0question\ue0d1", "\ue0d0answer\ue0d1", "\ue0d0next\ue0d1")
_JOINT = "\n\n"  # between a text and a question in one message


def find_layout(tokenizer: Any, wanted: str = "auto") -> Layout:
    r"""The layout of a name: ``"chat"`` is the tokenizer's template, ``"plain"`` text, a line break and question.

    ``"auto"`` is the template if there is one. Any other text has the places ``{document}`` and ``{question}``, each
    once, in this order: ``"Read this:\n{document}\n\nQ: {question}\nA:"``.

    Raises:
        DocumentError: there is no such layout, or the template does not show a user's text as it is.
    """
    template = getattr(tokenizer, "chat_template", None)
    if wanted == "auto":
        wanted = "chat" if template else "plain"
    if wanted == "plain":
        return PLAIN
    if wanted == "chat":
        if not template:
            raise DocumentError("the tokenizer has no chat template; use layout 'plain', or write your own")
        return _of_template(tokenizer)
    if [match[1] for match in _PLACES.finditer(wanted)] != ["document", "question"]:
        raise DocumentError(
            "a layout must be 'auto', 'chat', 'plain', or a text with {document} and then {question}, each once; not "
            f"{wanted!r}"
        )
    head, _, joint, _, end = _PLACES.split(wanted)
    return Layout("own", head, joint, end, joint)


def _of_template(tokenizer: Any) -> Layout:
    text, question, answer, after = _MARKS
    asked = [{"role": "user", "content": f"{text}{_JOINT}{question}"}]
    again = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": after}]
    first = _render(tokenizer, asked)
    found = re.fullmatch(f"(.*){text}(.*){question}(.*)", first, re.DOTALL)
    if found is None or any(first.count(mark) != 1 for mark in (text, question)):
        raise DocumentError(
            "the chat template changes the user's text, so longspan cannot tell where the document stands; use "
            "layout 'plain', or write your own"
        )
    between = re.search(f"{answer}(.*){after}", _render(tokenizer, again), re.DOTALL)
    return Layout("chat", found[1], found[2], found[3], between[1] if between is not None else _JOINT)


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template raises what it likes
        raise DocumentError(
            f"the chat template cannot be filled ({' '.join(str(error).split())}); use layout 'plain', or "
            "write your own"
        ) from error


def encode(tokenizer: Any, text: str) -> Tensor:
    """Ids ``[T]`` of what stands around a text, in which special tokens are such; raises as ``encode_text``."""
    _check_characters(text)
    return torch.tensor(plain_ids(tokenizer, text), dtype=torch.int64)


def encode_text(tokenizer: Any, text: str, joint: str = "") -> tuple[Tensor, Tensor]:
    """Ids ``[T]`` of a text after a ``joint``, and ``[T, 2]``: the first character of each token and one past its last.

    What looks like a special token in it is text.

    Raises:
        DocumentError: there is half of a surrogate pair in it.
    """
    _check_characters(text)
    text = joint + text
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    if getattr(tokenizer, "is_fast", False):
        found = tokenizer(text, return_offsets_mapping=True, **options)
        places = torch.tensor(found["offset_mapping"], dtype=torch.int64).view(-1, 2)
        return torch.tensor(found["input_ids"], dtype=torch.int64), places
    ids = torch.tensor(tokenizer(text, **options)["input_ids"], dtype=torch.int64)
    return ids, _spread(len(text), len(ids))


def _check_characters(text: object) -> None:
    if not isinstance(text, str):
        raise DocumentError(f"a text must be a string, not {text!r:.80}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"{text[error.start]!r} at character {error.start + 1:,} of {text[:40]!r} is half of a surrogate pair, "
            "which is not a character; leave it out, or read the file in its own encoding"
        ) from None


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ``DocumentError`` for what is no tokenizer: its name, or the model."""
    if not callable(tokenizer) or isinstance(tokenizer, nn.Module):
        given = repr(tokenizer) if isinstance(tokenizer, str) or tokenizer is None else f"a {type(tokenizer).__name__}"
        raise DocumentError(
            f'the tokenizer is {given}; pass the model and then its tokenizer, AutoTokenizer.from_pretrained("...")'
        )


def head_of(tokenizer: Any, layout: Layout) -> Tensor:
    """Ids ``[T]`` int64 before a text.

    They are those that the tokenizer begins every text with, and then the layout's; a template has them itself.
    """
    own = encode(tokenizer, layout.head)
    if layout.name == "chat":
        return own  # a template writes the first token itself, if it wants one
    return torch.cat((torch.tensor(beginning(tokenizer), dtype=torch.int64), own))


def _spread(characters: int, tokens: int) -> Tensor:
    """Places of tokens whose tokenizer does not say them: evenly over the text, as near as can be known."""
    edges = torch.linspace(0, characters, tokens + 1, dtype=torch.float64).round().long()
    return torch.stack((edges[:-1], edges[1:]), dim=1)
