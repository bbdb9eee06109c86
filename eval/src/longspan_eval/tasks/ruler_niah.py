"""RULER's eight needle-in-a-haystack tasks (Hsieh et al., 2024): magic numbers hidden in noise, prose or other needles.

The prompts' wording is RULER's (Apache-2.0), in the singular if there is one answer, and so are the kinds of keys,
values and haystacks of each task. Unlike there, the prose is the one that ships with longspan, a different passage for
every seed, and keys are drawn from word lists of our own.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked, fitting, inside
from longspan_eval.tasks.haystack import Hay, Needle, hide, noise_tail, text_of
from longspan_eval.tasks.scores import contained
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

NEW_TOKENS = 128
DEPTHS = tuple(round(100 * n / 39) / 100 for n in range(40))  # where needles lie whose depth is not asked for

TASK = "{some} special magic {values} {are} hidden within the following text. Make sure to memorize it. "
TASK += "I will quiz you about the {values} afterwards.\n"
NEEDLE = "One of the special magic {values} for {key} is: {value}."
QUESTION = "\nWhat {are_all} the special magic {values} for {query} mentioned in the provided text? "
QUESTION += "The special magic {values} for {query} mentioned in the provided text {are}"

Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True)
class Niah:
    """Needles that give keys their magic values.

    Attributes:
        haystack: the passkey task's noise, prose, or needles of other keys.
        key: adjective and noun, or a UUID.
        value: seven digits, or a UUID.
        keys: how many are in the text, besides those of a haystack of needles.
        values: how many each key has.
        queries: how many keys are asked for.
    """

    name: str
    haystack: Literal["noise", "prose", "needles"]
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def single(self) -> bool:
        """Whether there is one answer, and so one depth to put it at."""
        return self.queries * self.values == 1

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=self.single)
        rng = random.Random(seed)
        asked = rng.random() if self.single and depth is None else depth
        keys, values = self._distinct(rng, self.key), self._distinct(rng, self.value)
        told = [(next(keys), [next(values) for _ in range(self.values)]) for _ in range(self.keys)]
        queried = told[: self.queries]
        sentences = [self._sentence(key, value) for key, own in told for value in own]
        depths = rng.sample(DEPTHS, len(sentences))
        if self.single and asked is not None:
            depths[0] = asked
        before, after = self._frame([key for key, _ in queried])
        inline = self.haystack == "prose"
        ids, placed = hide(
            tokenizer,
            self.name,
            self._haystack(tokenizer, rng, keys, values),
            [Needle(f" {s}" if inline else f"\n{s}", place) for s, place in zip(sentences, depths, strict=True)],
            before=before,
            after=after,
            length=length,
            new_tokens=NEW_TOKENS,
        )
        answers = tuple(value for _, own in queried for value in own)
        return Example(ids, answers, seed, asked, placed[0] if self.single else None)

    def _sentence(self, key: str, value: str) -> str:
        return NEEDLE.format(values=self.value, key=key, value=value)

    def _frame(self, queried: list[str]) -> tuple[str, str]:
        """Strings before and after the text."""
        query = queried[0] if len(queried) == 1 else f"{', '.join(queried[:-1])}, and {queried[-1]}"
        if self.single:
            words = {"some": "A", "are": "is", "are_all": "is", "values": self.value[:-1]}
        else:
            words = {"some": "Some", "are": "are", "are_all": "are all", "values": self.value}
        return TASK.format(**words), QUESTION.format(**words, query=query)

    def _haystack(
        self, tokenizer: Any, rng: random.Random, keys: Iterator[str], values: Iterator[str]
    ) -> Callable[[int], Hay]:
        """The text, by the room for it. One of needles has as many as fit, brought to length with noise."""
        if self.haystack != "needles":
            return text_of(tokenizer, self.haystack, rng)

        def needles(room: int) -> Hay:
            others = (f"\n{self._sentence(*pair)}" for pair in zip(keys, values, strict=False))
            units = inside(tokenizer, fitting(tokenizer, others, room))
            return Hay.of([noise_tail(tokenizer, room - sum(map(len, units))), *units])

        return needles

    def _distinct(self, rng: random.Random, kind: Kind) -> Iterator[str]:
        """Keys or values, none of them twice."""
        seen: set[str] = set()
        while kind != "words" or len(seen) < len(ADJECTIVES) * len(NOUNS):
            drawn = _draw(rng, kind)
            if drawn not in seen:
                seen.add(drawn)
                yield drawn
        raise ValueError(f"{self.name} has {len(seen):,} keys of words, too few for so long a text")


def _draw(rng: random.Random, kind: Kind) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def _task(niah: Niah, summary: str) -> Task:
    return Task(
        name=niah.name,
        version=1,
        paper="Hsieh et al., 2024, arXiv 2404.06654",
        summary=summary,
        new_tokens=NEW_TOKENS,
        build=niah,
        score=contained,
        at_depths=niah.single,
    )


RULER_NIAH = (
    _task(Niah("ruler-niah-single-1", "noise"), "a number of one key, hidden in noise"),
    _task(Niah("ruler-niah-single-2", "prose"), "a number of one key, hidden in prose"),
    _task(Niah("ruler-niah-single-3", "prose", value="uuids"), "a UUID of one key, hidden in prose"),
    _task(Niah("ruler-niah-multikey-1", "prose", keys=4), "the number of one of four keys, hidden in prose"),
    _task(Niah("ruler-niah-multikey-2", "needles"), "the number of one key, among those of other keys"),
    _task(
        Niah("ruler-niah-multikey-3", "needles", key="uuids", value="uuids"),
        "the UUID of one key that is a UUID, among those of other keys",
    ),
    _task(Niah("ruler-niah-multivalue", "prose", values=4), "all four numbers of one key, hidden in prose"),
    _task(Niah("ruler-niah-multiquery", "prose", keys=4, queries=4), "the numbers of four keys, hidden in prose"),
)
