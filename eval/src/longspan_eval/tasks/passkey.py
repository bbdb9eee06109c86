"""The passkey task (Mohtashami & Jaggi, 2023): five digits hidden in noise or prose, asked for at the end.

One prompt measures two things: whether the digits are found, and how well the end of the text is predicted. Prompts of
one seed end in the same text whatever their length: a longer one only begins earlier. So passkey, scored tokens and
question are the same at two lengths, and what differs is how much came before.

Lengths are in tokens and exact.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from typing import Any

from longspan.text.encode import beginning, encode
from longspan_eval.filler import FillerName, load_filler
from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.scores import first_integer

NAME, VERSION = "passkey", 2
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"
ANSWER_ROOM = 8  # tokens to keep free for the answer, so that a prompt of one window and its answer stay inside it


def build(
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
    name: str = NAME,
    filler: FillerName = "noise",
    answer_room: int = 0,
    targets: int = 0,
) -> Example:
    """A prompt that takes ``length`` tokens together with ``answer_room`` more for the answer.

    Args:
        length: tokens.
        seed: decides the passkey, the place in the text, and the depth if it is None.
        depth: where the passkey goes, 0 to 1; it is moved to the nearest end of a sentence, whole.
        filler: what it is hidden in: ``"noise"``, the sentences of the original task, or ``"prose"``.
        answer_room: tokens left free.
        targets: how many of the last tokens of the text are scored. The one right after the passkey is not, if it
            is among them: it follows on the passkey, so its loss says nothing about reading the text.

    Raises:
        ValueError: the length is too short for the task and the scored tokens, or the depth is not in 0..1.
    """
    check_asked(name, depth, record, at_depths=True)
    rng = random.Random(seed)
    key = str(rng.randint(10000, 99999))
    hay = load_filler(tokenizer, filler)
    end = hay.draw_end(rng)
    asked = rng.random() if depth is None else depth
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


def number_complete(text: str) -> bool:
    """Whether the first integer of a text has ended, so that more tokens cannot change it."""
    return re.search(r"\d\D", text) is not None


def _task(name: str, filler: FillerName, summary: str) -> Task:
    return Task(
        name=name,
        version=VERSION,
        paper="Mohtashami & Jaggi, 2023, arXiv 2305.16300",
        summary=summary,
        new_tokens=ANSWER_ROOM,
        build=partial(build, name=name, filler=filler, answer_room=ANSWER_ROOM),
        score=first_integer,
        at_depths=True,
        until=number_complete,
    )


PASSKEY = _task(NAME, "noise", "five digits hidden in noise, asked for at the end")
PASSKEY_PROSE = _task(f"{NAME}-prose", "prose", "five digits hidden in prose, asked for at the end")
PASSKEYS = (PASSKEY, PASSKEY_PROSE)


def scored_passkey(filler: FillerName, targets: int) -> Task:
    """The passkey task over a filler, with the loss of the last ``targets`` tokens of the text taken."""
    task = _task(NAME, filler, f"five digits hidden in {filler}, and the loss of the end of the text")
    scored = partial(build, filler=filler, answer_room=ANSWER_ROOM, targets=targets)
    return replace(task, build=scored, filler=filler, targets=targets)
