"""A needle in a haystack (Kamradt, 2023): one sentence in prose, at any depth of any length.

Needle and question are the original's (MIT licence). As there, the needle is moved back from the depth asked to the end
of the last sentence before it. Unlike there, the haystack is the prose that ships with longspan, a different passage
for every seed; the prompt ends in the beginning of the answer, so that models that were not taught to chat can be
asked; and the answer is not judged by GPT-4 but by the share of its key facts that it names. The needle has been on the
web since 2023, so a model may know the answer without reading.
"""

from __future__ import annotations

import random
from typing import Any

from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.haystack import Needle, hide, prose
from longspan_eval.tasks.scores import contained

NAME, NEW_TOKENS = "needle", 48
TASK = "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n"
NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = (
    "\n\nWhat is the best thing to do in San Francisco? Don't give information outside the document or repeat your "
    "findings\nThe best thing to do in San Francisco is"
)
FACTS = ("sandwich", "Dolores Park", "sunny day")


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """The needle in prose; the seed decides the passage, and the depth where it is None."""
    check_asked(NAME, depth, record, at_depths=True)
    rng = random.Random(seed)
    passage = prose(tokenizer).passage(rng)
    asked = rng.random() if depth is None else depth
    needle = Needle(f"\n{NEEDLE}\n", asked)
    ids, placed = hide(
        tokenizer,
        NAME,
        passage,
        [needle],
        before=TASK,
        after=QUESTION,
        length=length,
        new_tokens=NEW_TOKENS,
        back=True,
    )
    return Example(ids, FACTS, seed, asked, placed[0])


NEEDLES = (
    Task(
        name=NAME,
        version=1,
        paper="Kamradt, 2023, github.com/gkamradt/LLMTest_NeedleInAHaystack",
        summary="one sentence hidden in prose; the share of its key facts in the answer",
        new_tokens=NEW_TOKENS,
        build=build,
        score=contained,
        at_depths=True,
    ),
)
