"""The most common words of a short list that lies in noise: RULER's common words at a size that fits 512 tokens.

The wording is RULER's (Apache-2.0; Hsieh et al., 2024), whose list fills the whole prompt and comes after a worked
example. Here the list has the same size at any length, and a longer prompt has more noise before and after it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks.haystack import Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.ruler_words import CWE_QUESTION, CWE_TASK
from longspan_eval.tasks.scores import contained
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

QUESTION = CWE_QUESTION.replace("10", "{count}")


@dataclass(frozen=True)
class CommonWords(Hiding):
    """A numbered list of words, some of which stand in it several times; those are asked for.

    Attributes:
        common, times: how many words stand in the list how often.
        others: how many stand in it once.
    """

    name: str = "common-words"
    common: int = 5
    times: int = 6
    others: int = 5
    new_tokens: int = 40

    text = "noise"

    def draw(self, rng: random.Random) -> Hidden:
        words = rng.sample(sorted({*ADJECTIVES, *NOUNS}), self.common + self.others)
        entries = words[: self.common] * self.times + words[self.common :]
        rng.shuffle(entries)
        listing = " ".join(f"{n}. {word}" for n, word in enumerate(entries, 1))
        return Hidden(
            QUESTION.format(count=self.common),
            tuple(words[: self.common]),
            others=[Needle(f"\n{CWE_TASK.strip()}\n{listing}", rng.random())],
        )


COMMON_WORDS = (
    CommonWords().task(
        version=1,
        paper="longspan, 2026, after Hsieh et al., 2024, arXiv 2404.06654",
        summary=f"the {CommonWords.common} of {CommonWords.common + CommonWords.others} words that a list in noise has "
        f"{CommonWords.times} times; the share named",
        score=contained,
    ),
)
