"""The passkey task (Mohtashami & Jaggi, 2023): five digits hidden in a long text, asked for at its end.

Lengths are measured in tokens and are exact. Nothing here needs torch: a prompt is a list of token ids, and a
prediction is text.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any, Literal

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"

Filler = Literal["noise", "prose"]


@dataclass(frozen=True)
class Example:
    """One prompt: its tokens, the digits that answer it, and where the needle lies (0 start, 1 end)."""

    input_ids: list[int]
    answer: str
    depth: float


def build(
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    filler: Filler = "noise",
    text: str | None = None,
) -> Example:
    """A prompt of exactly `length` tokens.

    The key and the piece of prose are drawn from `seed`, and so is the depth where it is None. The needle
    goes to the end of the sentence nearest to `depth`, whole; `Example.depth` is where it went. `filler` is
    what it is hidden in: the sentences of the original task, or prose, from `text` if given, else the text
    that ships with the package. A text shorter than the prompt is read round again.
    """
    rng = random.Random(seed)
    key = str(rng.randint(10000, 99999))
    wanted = rng.random() if depth is None else depth
    if not 0.0 <= wanted <= 1.0:
        raise ValueError(f"depth must lie in 0..1, not {wanted}")
    head = _start(tokenizer) + _encode(tokenizer, TASK)
    needle = _encode(tokenizer, NEEDLE.format(key=key))
    question = _encode(tokenizer, QUESTION)
    room = length - len(head) - len(needle) - len(question)
    if room < 0:
        raise ValueError(f"{length} tokens are too few: the task alone takes {length - room}")
    if filler == "noise":
        garbage = _noise(tokenizer, room)
    elif filler == "prose":
        garbage = _prose(tokenizer, room, rng, text)
    else:
        raise ValueError(f"filler must be 'noise' or 'prose', not {filler!r}")
    cut = _sentence_end(tokenizer, garbage, round(wanted * room))
    ids = [*head, *garbage[:cut], *needle, *garbage[cut:], *question]
    return Example(input_ids=ids, answer=key, depth=cut / room if room else 0.0)


def score(prediction: str, answer: str) -> float:
    """1.0 if the first integer in `prediction` equals `answer`, else 0.0."""
    found = re.search(r"\d+", prediction)
    return float(found is not None and found.group() == answer)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _start(tokenizer: Any) -> list[int]:
    """The token that this tokenizer puts before a text, if it does so."""
    bos = tokenizer.bos_token_id
    first = list(tokenizer("a")["input_ids"])[:1]
    return [bos] if bos is not None and first == [bos] else []


def _noise(tokenizer: Any, room: int) -> list[int]:
    once = _encode(tokenizer, NOISE)
    return (once * (room // len(once) + 1))[:room]


def _prose(tokenizer: Any, room: int, rng: random.Random, text: str | None) -> list[int]:
    """`room` tokens of prose from the start of a random line; only as much text is tokenized as is needed."""
    if text is None:
        from longspan.bundled import heldout_text

        text = heldout_text()
    start = rng.choice([0, *(found.end() for found in re.finditer("\n+", text) if found.end() < len(text))])
    ids: list[int] = []
    while len(ids) < room:
        piece = text[start : start + 8 * room]
        ids += _encode(tokenizer, piece)
        start = (start + len(piece)) % len(text)
    return ids[:room]


def _sentence_end(tokenizer: Any, ids: list[int], target: int) -> int:
    """The index nearest to `target` (within 64 tokens) at which a sentence has just ended, else `target`."""
    for distance in range(65):
        for index in (target - distance, target + distance):
            if index in (0, len(ids)):
                return index
            if 0 < index < len(ids) and tokenizer.decode([ids[index - 1]]).rstrip(" ").endswith((".", "\n")):
                return index
    return target
