"""The value of a key in a small JSON object that lies in noise: 16 pairs of words and numbers.

The wording is that of InfiniteBench's key-value retrieval (Zhang et al., 2024; MIT), whose object fills the whole
prompt with UUIDs. Here the object has the same size at any length, so that it fits a window of 512 tokens and a longer
prompt is one with more noise before and after it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import word_in_answer
from longspan_eval.tasks.words import NOUNS

TASK = "\nExtract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
QUESTION = '\n\n\nKey: "{key}"\nThe value associated with the specified key is:'


@dataclass(frozen=True)
class KeyValue(Hiding):
    """An object of words and numbers, and one of its keys.

    Attributes:
        pairs: how many.
    """

    name: str = "key-value"
    pairs: int = 16
    new_tokens: int = 16

    text = "noise"
    at_depths = True

    def draw(self, rng: random.Random) -> Hidden:
        keys = rng.sample(NOUNS, self.pairs)
        values = [str(value) for value in rng.sample(range(10_000, 100_000), self.pairs)]
        items = ", ".join(f'"{key}": "{value}"' for key, value in zip(keys, values, strict=True))
        wanted = rng.randrange(self.pairs)
        return Hidden(QUESTION.format(key=keys[wanted]), (values[wanted],), wanted=f"{TASK}{{{items}}}")


KEY_VALUES = (
    KeyValue().task(
        version=1,
        paper="longspan, 2026, after Zhang et al., 2024, arXiv 2402.13718",
        summary=f"the value of one of {KeyValue.pairs} keys of a JSON object in noise",
        score=word_in_answer,
    ),
)
