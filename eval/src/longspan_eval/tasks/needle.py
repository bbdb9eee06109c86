"""A needle in a haystack (Kamradt, 2023): one sentence in prose, at any depth of any length.

Needle and question are the original's (MIT licence). As there, the needle is moved back from the depth asked to the end
of the last sentence before it. Unlike there, the haystack is the prose that ships with longspan, a different passage
for every seed; the prompt ends in the beginning of the answer, so that models that were not taught to chat can be
asked; and the answer is not judged by GPT-4 but by the share of its key facts that it names. The needle has been on the
web since 2023, so a model may know the answer without reading.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import contained

TASK = "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n"
NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = (
    "\n\nWhat is the best thing to do in San Francisco? Don't give information outside the document or repeat your "
    "findings\nThe best thing to do in San Francisco is"
)
FACTS = ("sandwich", "Dolores Park", "sunny day")


@dataclass(frozen=True)
class KamradtNeedle(Hiding):
    """The needle in prose."""

    name: str = "needle"
    new_tokens: int = 48

    text = "prose"
    at_depths = True
    back = True

    def draw(self, rng: random.Random) -> Hidden:
        return Hidden(QUESTION, FACTS, wanted=f"\n{NEEDLE}\n", before=TASK)


NEEDLES = (
    KamradtNeedle().task(
        version=1,
        paper="Kamradt, 2023, github.com/gkamradt/LLMTest_NeedleInAHaystack",
        summary="one sentence hidden in prose; the share of its key facts in the answer",
        score=contained,
    ),
)
