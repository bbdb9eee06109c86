"""Several needles at once (NeedleBench's multi-needle retrieval; Li et al., 2024): all are asked for in one answer.

The wording is NeedleBench's (Apache-2.0), islands and items are drawn from lists of our own. Needles lie at even
depths, the first at the start of the text and the last at its end. The prompt ends in the beginning of the answer, so
that models that were not taught to chat can be asked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.task import Task
from longspan_eval.tasks.haystack import Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import keywords
from longspan_eval.tasks.words import ISLANDS, KINDS, THINGS

NAME, NEEDLES, FEWER = "multi-needle", 5, 3
TASK = (
    "You are an intelligent AI assistant skilled in answering user questions.\n"
    "Please keep your answers concise and clear. Do not talk about irrelevant topics or repeat your answers.\n"
    "The document given to you by the user is"
)
NEEDLE = "\nHidden on {island} Island is the legendary {item}.\n"
QUESTION = "What legendary item is hidden on {island} Island?"
CONSIDER = "Before answering, please consider what in the document is most relevant to this question."
ANSWER = "The legendary item hidden on the {island} Island is"


@dataclass(frozen=True)
class MultiNeedle(Hiding):
    """Legendary items hidden on islands.

    Attributes:
        needles: how many, 2 at least.
    """

    name: str = NAME
    needles: int = NEEDLES
    new_tokens: int = 200

    text = "prose"

    def __post_init__(self) -> None:
        most = min(len(ISLANDS), len(KINDS), len(THINGS))
        if not 2 <= self.needles <= most:
            raise ValueError(f"needles must be 2 to {most}, not {self.needles}")

    def draw(self, rng: random.Random) -> Hidden:
        islands = rng.sample(ISLANDS, self.needles)
        kinds, things = rng.sample(KINDS, self.needles), rng.sample(THINGS, self.needles)
        items = [f"{kind} {thing}" for kind, thing in zip(kinds, things, strict=True)]
        needles = [
            Needle(NEEDLE.format(island=island, item=item), n / (self.needles - 1))
            for n, (island, item) in enumerate(zip(islands, items, strict=True))
        ]
        # Asked in another order than they are told, as the original draws its questions.
        order = rng.sample(range(self.needles), self.needles)
        questions = " ".join(QUESTION.format(island=islands[n]) for n in order)
        form = " ".join(f"{ANSWER.format(island=islands[n])} ____." for n in order)
        after = (
            f"\n\nNow, the questions are: {questions} {CONSIDER} Please answer in the format of '{form}'\n"
            f"{ANSWER.format(island=islands[order[0]])}"
        )
        return Hidden(after, tuple(items[n] for n in order), others=needles, before=TASK)


def _task(name: str, needles: int) -> Task:
    return MultiNeedle(name, needles).task(
        version=2,
        paper="Li et al., 2024, arXiv 2407.11963 (NeedleBench)",
        summary=f"{needles} sentences hidden in prose at even depths, asked for at once; the share found",
        score=keywords,
    )


MULTI_NEEDLE = (_task(NAME, NEEDLES), _task(f"{NAME}-{FEWER}", FEWER))
