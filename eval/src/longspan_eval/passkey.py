"""The passkey task (Mohtashami & Jaggi, 2023): five digits hidden in a long text, asked for at its end.

One prompt measures two things: whether the digits are found, and how well the end of the text is predicted. Prompts of
one seed end in the same text whatever their length: a longer one only begins earlier. So passkey, scored tokens and
question are the same at two lengths, and what differs is how much came before.

Lengths are in tokens and exact. Nothing here needs torch: a prompt is a list of token ids, and a prediction is text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from longspan.text.encode import beginning, encode
from longspan_eval.filler import NOISE, FillerName, load_filler
from longspan_eval.task import Example

NAME, VERSION = "passkey", 2
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"
ANSWER_ROOM = 8  # tokens to keep free for the answer, so that a prompt of one window and its answer stay inside it

__all__ = ["ANSWER_ROOM", "NAME", "NEEDLE", "NOISE", "QUESTION", "TASK", "VERSION", "build", "score"]


def build(
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    filler: FillerName = "noise",
    text: str | None = None,
    answer_room: int = 0,
    targets: int = 0,
) -> Example:
    """A prompt that takes ``length`` tokens together with ``answer_room`` more for the answer.

    Args:
        tokenizer: a transformers tokenizer.
        length: tokens.
        seed: decides the passkey, the place in the text, and the depth if it is None.
        depth: where the passkey goes, 0 to 1; it is moved to the nearest end of a sentence, whole.
        filler: what it is hidden in: ``"noise"``, the sentences of the original task, or ``"prose"``.
        text: the prose, instead of the prose that ships with longspan; read round again if it is too short.
        answer_room: tokens left free.
        targets: how many of the last tokens of the text are scored. The one right after the passkey is not, if it
            is among them: it follows on the passkey, so its loss says nothing about reading the text.

    Raises:
        ValueError: the length is too short for the task and the scored tokens, or the depth is not in 0..1.
    """
    rng = random.Random(seed)
    key = str(rng.randint(10000, 99999))
    hay = load_filler(tokenizer, filler, text)
    end = hay.draw_end(rng)
    asked = rng.random() if depth is None else depth
    if not 0.0 <= asked <= 1.0:
        raise ValueError(f"depth must lie in 0..1, not {asked}")
    head = beginning(tokenizer) + encode(tokenizer, TASK)
    needle = encode(tokenizer, NEEDLE.format(key=key))
    question = encode(tokenizer, QUESTION)
    room = length - answer_room - len(head) - len(needle) - len(question)
    if room < targets:
        least = length - room + targets
        scored_too = f" with {targets} scored tokens" if targets else ""
        raise ValueError(f"{length} tokens are too few: the task{scored_too} takes {least}")
    body = hay.before(end, room)
    cut = hay.sentence_end(body, round(asked * room))
    ids = [*head, *body[:cut], *needle, *body[cut:], *question]
    scored = tuple(len(head) + n + (len(needle) if n > cut else 0) for n in range(room - targets, room) if n != cut)
    return Example(ids, (key,), seed, asked, cut / room if room else 0.0, scored)


def score(prediction: str, references: Sequence[str]) -> float:
    """1.0 if the first integer in ``prediction`` is one of ``references``, else 0.0."""
    if isinstance(references, str):
        raise ValueError(f"references must be a sequence of answers, such as ({references!r},), not one string")
    found = re.search(r"\d+", prediction)
    return float(found is not None and found.group() in references)


def number_complete(text: str) -> bool:
    """Whether the first integer of a text has ended, so that more tokens cannot change it."""
    return re.search(r"\d\D", text) is not None
