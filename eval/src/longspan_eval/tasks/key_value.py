"""The value of a key in a small JSON object that lies in noise: 16 pairs of words and numbers.

The wording is that of InfiniteBench's key-value retrieval (Zhang et al., 2024; MIT), whose object fills the whole
prompt with UUIDs. Here the object has the same size at any length, so that it fits a window of 512 tokens and a longer
prompt is one with more noise before and after it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.haystack import Needle, hide, noise
from longspan_eval.tasks.scores import word_in_answer
from longspan_eval.tasks.words import NOUNS

TASK = "\nExtract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
QUESTION = '\n\n\nKey: "{key}"\nThe value associated with the specified key is:'


@dataclass(frozen=True)
class KeyValue:
    """An object of words and numbers, and one of its keys.

    Attributes:
        name: the task's.
        pairs: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str = "key-value"
    pairs: int = 16
    new_tokens: int = 16

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        asked = rng.random() if depth is None else depth
        keys = rng.sample(NOUNS, self.pairs)
        values = [str(value) for value in rng.sample(range(10_000, 100_000), self.pairs)]
        items = ", ".join(f'"{key}": "{value}"' for key, value in zip(keys, values, strict=True))
        wanted = rng.randrange(self.pairs)
        ids, placed = hide(
            tokenizer,
            self.name,
            partial(noise(tokenizer).before, 0),
            [Needle(f"{TASK}{{{items}}}", asked)],
            before="",
            after=QUESTION.format(key=keys[wanted]),
            length=length,
            new_tokens=self.new_tokens,
        )
        return Example(ids, (values[wanted],), seed, asked, placed[0])


def _task(key_value: KeyValue) -> Task:
    return Task(
        name=key_value.name,
        version=1,
        paper="longspan, 2026, after Zhang et al., 2024, arXiv 2402.13718",
        summary=f"the value of one of {key_value.pairs} keys of a JSON object in noise",
        new_tokens=key_value.new_tokens,
        build=key_value,
        score=word_in_answer,
        at_depths=True,
    )


KEY_VALUES = (_task(KeyValue()),)
