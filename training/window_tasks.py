"""The evaluation's tasks in the window, and one whose wording tells what was learned by heart."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks import TASKS as EVALUATED
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.haystack import Needle, hide, prose
from longspan_eval.tasks.ruler_niah import RULER_NIAH
from longspan_eval.tasks.scores import contained
from longspan_eval.tasks.words import ADJECTIVES, NOUNS
from retrieval import HELDOUT_WORDING

NAMES = (
    *("passkey", "passkey-prose", "facts", "key-value", "vt-2-hops", "vt-2-hops-2-chains", "common-words"),
    *(task.name for task in RULER_NIAH),
)


@dataclass(frozen=True)
class Magic:
    """Named numbers in prose, one of them asked for, in a wording that training does not have.

    Attributes:
        name: the task's.
        keys: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str = "magic-heldout"
    keys: int = 4
    new_tokens: int = 16

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        passage = prose(tokenizer).passage(rng)
        asked = rng.random() if depth is None else depth
        adjectives, nouns = rng.sample(ADJECTIVES, self.keys), rng.sample(NOUNS, self.keys)
        keys = [f"{adjective}-{noun}" for adjective, noun in zip(adjectives, nouns, strict=True)]
        values = [str(rng.randint(1_000_000, 9_999_999)) for _ in keys]
        places = [asked, *(rng.random() for _ in keys[1:])]
        needles = [
            Needle(f" {HELDOUT_WORDING.statement.format(key=key, value=value)}", place)
            for key, value, place in zip(keys, values, places, strict=True)
        ]
        after = HELDOUT_WORDING.question.format(key=keys[0])
        ids, placed = hide(
            tokenizer, self.name, passage, needles, before="", after=after, length=length, new_tokens=self.new_tokens
        )
        return Example(ids, (values[0],), seed, asked, placed[0])


MAGIC = Task("magic-heldout", 1, "", "one of 4 numbers in prose, wording held out", 16, Magic(), contained, True)
WINDOW_TASKS = {**{name: EVALUATED[name] for name in NAMES}, MAGIC.name: MAGIC}
