"""The evaluation's tasks in the window, which the card has, and one whose wording tells what was learned by heart."""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks import TASKS as EVALUATED
from longspan_eval.tasks.haystack import Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.ruler_niah import RULER_NIAH
from longspan_eval.tasks.scores import contained
from longspan_eval.tasks.words import ADJECTIVES, NOUNS
from retrieval import HELDOUT_WORDING

CARD_TASKS = (
    *("passkey", "passkey-prose", "facts", "key-value", "vt-2-hops", "vt-2-hops-2-chains", "common-words"),
    *(task.name for task in RULER_NIAH),
)


@dataclass(frozen=True)
class Magic(Hiding):
    """Named numbers in prose, one of them asked for, in a wording that training does not have.

    Attributes:
        name: the task's.
        keys: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str = "magic-heldout"
    keys: int = 4
    new_tokens: int = 16

    text = "prose"
    at_depths = True

    def draw(self, rng: random.Random) -> Hidden:
        adjectives, nouns = rng.sample(ADJECTIVES, self.keys), rng.sample(NOUNS, self.keys)
        keys = [f"{adjective}-{noun}" for adjective, noun in zip(adjectives, nouns, strict=True)]
        values = [str(rng.randint(1_000_000, 9_999_999)) for _ in keys]
        wanted, *others = (
            f" {HELDOUT_WORDING.statement.format(key=key, value=value)}"
            for key, value in zip(keys, values, strict=True)
        )
        return Hidden(
            HELDOUT_WORDING.question.format(key=keys[0]),
            (values[0],),
            wanted=wanted,
            others=[Needle(other, rng.random()) for other in others],
        )


MAGIC = Magic().task(version=1, paper="", summary="one of 4 numbers in prose, wording held out", score=contained)
WINDOW_TASKS = {**{name: EVALUATED[name] for name in CARD_TASKS}, MAGIC.name: MAGIC}
