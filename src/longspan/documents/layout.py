"""Where a text and a question stand in what the model reads: its chat template, or a plain layout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.documents.manifest import Layout
from longspan.errors import DocumentError
from longspan.text.encode import beginning
from longspan.text.encode import encode as plain_ids

PLAIN = Layout("plain", "", "\n", "", "\n")
_PLACES = re.compile(r"\{(document|question)\}")
_MARKS = tuple(f"\ue0d0{name}\ue0d1" for name in ("document", "question", "answer", "next", "system"))
_JOINT = "\n\n"  # between an answer and a question of which a template shows one alone
_NO_SYSTEM = (
    "the chat template has no place for a system prompt before the text; put its words into a layout of your own"
)


@dataclass(frozen=True)
class _Around:
    """What a named layout puts around a text and a question in one message of the user, inside the chat template.

    Attributes:
        head: before the text. joint: between the text and the first question. asked: before each question.
    """

    head: str
    joint: str
    asked: str


# What names each layout of the chat template; the text is read before any question is known.
NAMED = {
    "chat": _Around("", "\n\n", ""),
    "instructed": _Around(
        "Read the following text. After it come questions about it: answer each from the text, in few words.\n\n",
        "\n\n",
        "Question: ",
    ),
    "quoted": _Around(
        'Below is a text between two lines of three quotation marks.\n\n"""\n',
        '\n"""\n\nAnswer from the text above, in few words.\n\n',
        "Question: ",
    ),
}

BEST = "quoted"  # finds most of what a text says (benchmarks/layouts.py)


def find_layout(tokenizer: Any, wanted: str = "auto", system: str = "") -> Layout:
    r"""The layout of a name: ``"chat"`` is the tokenizer's template, ``"plain"`` text, a line break and question.

    ``"instructed"`` and ``"quoted"`` are the template with an instruction around the text. ``"auto"`` is ``"quoted"``
    if there is a template, else ``"plain"``. Any other text has the places ``{document}`` and ``{question}``, each
    once, in this order: ``"Read this:\n{document}\n\nQ: {question}\nA:"``.

    Args:
        system: a system prompt, for a template that shows one before the user's text; none if empty.

    Raises:
        DocumentError: there is no such layout, the template does not show a user's text as it is, or it has no place
            for a system prompt.
    """
    template = getattr(tokenizer, "chat_template", None)
    _check_characters(system)
    if wanted == "auto":
        wanted = BEST if template else "plain"
    if wanted in NAMED:
        if not template:
            raise DocumentError("the tokenizer has no chat template; use layout 'plain', or write your own")
        return _of_template(tokenizer, wanted, system.strip())
    if system:
        raise DocumentError(
            "a system prompt has its place in a chat template, and this layout has none; write a layout with these "
            "words before {document}"
        )
    if wanted == "plain":
        return PLAIN
    if [match[1] for match in _PLACES.finditer(wanted)] != ["document", "question"]:
        raise DocumentError(
            f"a layout must be 'auto', 'plain', {', '.join(map(repr, NAMED))}, or a text with {{document}} and then "
            f"{{question}}, each once; not {wanted!r}"
        )
    head, _, joint, _, end = _PLACES.split(wanted)
    return Layout("own", head, joint, end, joint)


def _of_template(tokenizer: Any, name: str, system: str) -> Layout:
    text, question, answer, after, said = _MARKS
    around = NAMED[name]
    asked = [{"role": "user", "content": f"{around.head}{text}{around.joint}{around.asked}{question}"}]
    if system:
        asked.insert(0, {"role": "system", "content": said})
    again = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": f"{around.asked}{after}"}]
    first = _render(tokenizer, asked)
    found = re.fullmatch(f"(.*){text}(.*){question}(.*)", first, re.DOTALL)
    if found is None or any(first.count(mark) != 1 for mark in (text, question)):
        raise DocumentError(
            "the chat template changes the user's text, so longspan cannot tell where the document stands; use "
            "layout 'plain', or write your own"
        )
    whole, head = _render(tokenizer, again), found[1]
    if system:
        # Some templates put it before the last of several questions, which is behind the document.
        if not head.count(said) == first.count(said) == whole.count(said) == 1 or not whole.startswith(head):
            raise DocumentError(_NO_SYSTEM)
        head = head.replace(said, system)
    between = re.search(f"{answer}(.*){after}", whole, re.DOTALL)
    turn = between[1] if between is not None else f"{_JOINT}{around.asked}"
    return Layout(name, head, found[2], found[3], turn, system)


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template raises what it likes
        if messages[0]["role"] == "system" and "system" in str(error).lower():
            raise DocumentError(_NO_SYSTEM) from error
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
    if layout.templated:
        return own  # a template writes the first token itself, if it wants one
    return torch.cat((torch.tensor(beginning(tokenizer), dtype=torch.int64), own))


def _spread(characters: int, tokens: int) -> Tensor:
    """Places of tokens whose tokenizer does not say them: evenly over the text, as near as can be known."""
    edges = torch.linspace(0, characters, tokens + 1, dtype=torch.float64).round().long()
    return torch.stack((edges[:-1], edges[1:]), dim=1)
