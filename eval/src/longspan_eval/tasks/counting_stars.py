"""Counting-Stars (Song et al., 2024): a penguin counts stars all over a text, and every count is to be listed.

Sentences and questions are the original's (MIT licence), in English. ``M`` sentences lie at even distances, the last at
the end of the text; their counts grow by 2 to 6 and are then shuffled, as in the original's second version. The prompt
ends in the beginning of the JSON answer, so that models that were not taught to chat can be asked. In the reasoning
variant each sentence names a wrong count before the right one. Unlike there, only right counts are scored: the authors'
code gives a sentence 0.5 if both of its counts are listed, and 0.25 if the wrong one alone is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate

from longspan_eval.task import Task
from longspan_eval.tasks.haystack import Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import list_membership

STARS, FEWER = 32, 16
COUNTED = "\nThe little penguin counted {stars} ★\n"
CORRECTED = (
    "\nThe little penguin counted {wrong} ★, but found that a mistake had been made, so the counting was done again, "
    "and this time {stars} ★ was counted correctly.\n"
)
QUESTION = (
    "\n\n\n\nOn this moonlit and misty night, the little penguin is looking up at the sky and concentrating on "
    'counting ★. Please help the little penguin collect the {correct}number of ★, for example: {{"little_penguin": '
    "[x, x, x,...]}}. The summation is not required, and the numbers in [x, x, x,...] represent the {correctly}counted "
    "number of ★ by the little penguin. Only output the results in JSON format without any explanation.\n"
    '{{"little_penguin": ['
)


@dataclass(frozen=True)
class CountingStars(Hiding):
    """The counts of a penguin, spread over prose.

    Attributes:
        reasoning: whether a wrong count stands before each right one.
        stars: M, the number of sentences.
    """

    name: str
    reasoning: bool = False
    stars: int = STARS
    new_tokens: int = 256

    text = "prose"

    def __post_init__(self) -> None:
        if self.stars < 1:
            raise ValueError(f"stars must be at least 1, not {self.stars}")

    def draw(self, rng: random.Random) -> Hidden:
        counts = list(accumulate(rng.randint(2, 6) for _ in range(self.stars)))
        # Right counts are at least 2 apart, so none of these is the right count of another sentence.
        slips = [count + 1 for count in counts]
        rng.shuffle(counts)
        rng.shuffle(slips)
        sentence = CORRECTED if self.reasoning else COUNTED
        needles = [
            Needle(sentence.format(stars=count, wrong=slip), (n + 1) / self.stars)
            for n, (count, slip) in enumerate(zip(counts, slips, strict=True))
        ]
        words = (
            {"correct": "correct ", "correctly": "correctly "} if self.reasoning else {"correct": "", "correctly": ""}
        )
        return Hidden(QUESTION.format(**words), tuple(map(str, counts)), others=needles)


def list_complete(text: str) -> bool:
    """Whether the list has been closed, so that more tokens cannot change it."""
    return "]" in text


def _task(name: str, summary: str, *, reasoning: bool = False, stars: int = STARS) -> Task:
    return CountingStars(name, reasoning, stars).task(
        version=3,
        paper="Song et al., 2024, arXiv 2403.11802",
        summary=f"{stars} {summary}, to be listed; the share listed",
        score=list_membership,
        until=list_complete,
    )


COUNTING_STARS = (
    _task("counting-stars", "counts spread over prose"),
    _task(f"counting-stars-{FEWER}", "counts spread over prose", stars=FEWER),
    _task("counting-stars-reasoning", "counts, each after a wrong one", reasoning=True),
)
