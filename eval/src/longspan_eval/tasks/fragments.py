"""Prompts put together from fragments that are tokenized one by one, so that their lengths add up with any tokenizer.

A fragment begins with what sets it off from the one before, a space or a newline, and never ends in one: that is where
byte-level BPE and SentencePiece both begin a token, so the fragments are the tokens that the whole text would have had,
or very nearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from longspan.text.encode import beginning, encode
from longspan_eval.task import Record

_ANCHOR = "a"


def inside(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text as it stands in the middle of a prompt.

    Tokenizers that put a space before whatever they are given would put one before every piece. So a text is tokenized
    behind a letter, and that letter's tokens are taken off again; if the two flow together, it is tokenized alone.
    The same text twice costs no more than once.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return []
    anchor = encode(tokenizer, _ANCHOR)
    found: dict[str, list[int]] = {}
    batch = tokenizer([_ANCHOR + text for text in distinct], add_special_tokens=False)["input_ids"]
    for text, ids in zip(distinct, batch, strict=True):
        alone = list(ids[: len(anchor)]) != anchor
        found[text] = encode(tokenizer, text) if alone else list(ids[len(anchor) :])
    return [found[text] for text in texts]


def piece(tokenizer: Any, text: str) -> list[int]:
    """The tokens of one text in the middle of a prompt."""
    return inside(tokenizer, [text])[0]


def opening(tokenizer: Any, text: str) -> list[int]:
    """The tokens of the text that a prompt begins with, after the token that this tokenizer begins with, if any."""
    return beginning(tokenizer) + encode(tokenizer, text)


def fitting(tokenizer: Any, texts: Iterable[str], room: int) -> list[str]:
    """The first of ``texts`` that take at most ``room`` tokens together. There may be no end of them."""
    drawn = iter(texts)
    kept: list[str] = []
    left, batch_size = room, 16
    while left > 0 and (batch := list(islice(drawn, batch_size))):
        for text, ids in zip(batch, inside(tokenizer, batch), strict=True):
            left -= len(ids)
            if left < 0:
                return kept
            kept.append(text)
        batch_size = left * len(kept) // max(room - left, 1) + 1  # about as many as are still to come
    return kept


def listed(tokenizer: Any, items: Sequence[str], brackets: tuple[str, str]) -> list[list[int]]:
    """The tokens of each item of a list in brackets, such as ``[1, 2, 3]``, with the brackets and commas beside it."""
    texts = [f"{item}," if n == 0 else f" {item}," for n, item in enumerate(items)]
    texts[0] = brackets[0] + texts[0]
    texts[-1] = texts[-1][:-1] + brackets[1]
    return inside(tokenizer, texts)


def check_asked(name: str, depth: float | None, record: Record | None, *, at_depths: bool) -> None:
    """Refuse a depth that is out of range or has no meaning for a task, and a record, which no synthetic task reads."""
    if record is not None:
        raise ValueError(f"{name} is synthetic and reads no file: leave record at None")
    if depth is not None and not at_depths:
        raise ValueError(f"{name} has no one place to put at depth {depth}: leave depth at None")
    if depth is not None and not 0.0 <= depth <= 1.0:
        raise ValueError(f"depth must lie in 0..1, not {depth}")


def too_few(name: str, length: int, least: int) -> ValueError:
    """The error for a length that a prompt of ``least`` tokens, answer included, does not fit in."""
    return ValueError(f"{length} tokens are too few: {name} takes {least}")
