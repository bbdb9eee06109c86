"""InfiniteBench's synthetic tasks (Zhang et al., 2024): Retrieve.KV, .Number and .PassKey, and Math.Find.

Prompts are the original's (MIT licence) as it puts them to models that were not taught to chat, without the space at
their end, which belongs to the answer's first token. Each task comes in two forms: as many pairs, lines or numbers as
fill the length; and ``-official``, as many as the paper has, for which the length is a limit. What whole pairs or
numbers leave over is filled with noise sentences, between the instruction and the data.
"""

from __future__ import annotations

import random
import statistics
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from longspan_eval.task import Build, Example, Record, Score, Task
from longspan_eval.tasks.fragments import check_asked, fitting, listed, opening, piece, too_few
from longspan_eval.tasks.haystack import Hay, HaySource, Needle, hide, noise, noise_tail
from longspan_eval.tasks.passkey import number_complete
from longspan_eval.tasks.scores import first_integer, first_number, word_in_answer

KV, NUMBER, PASSKEY, MATH_FIND = (f"infinitebench-{name}" for name in ("kv", "number", "passkey", "math-find"))
NEW_TOKENS = {KV: 50, NUMBER: 12, PASSKEY: 6, MATH_FIND: 3}
PAIRS, LINES, NUMBERS = 2500, 5220, 60_000  # as published

_HIDDEN = "There is an important info hidden inside a lot of irrelevant text. Find it{memorize}. I will quiz you about "
_HIDDEN += "the important information there.\n"


@dataclass(frozen=True)
class HiddenDigits:
    """Digits in noise.

    Attributes:
        lines: so many lines of noise; None: as many as fill the length.
        thing: what the digits are called.
        new_tokens: the most tokens of an answer.
    """

    name: str
    lines: int | None
    thing: str
    memorize: str
    new_tokens: int
    draw: Callable[[random.Random], str]

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        digits = self.draw(rng)
        asked = rng.random() if depth is None else depth
        sentence = f"\nThe {self.thing} is {digits}. Remember it. {digits} is the {self.thing}."
        ids, placed = hide(
            tokenizer,
            self.name,
            self._noise(noise(tokenizer)),
            [Needle(sentence, asked)],
            before=_HIDDEN.format(memorize=self.memorize),
            after=f"\n\n\nWhat is the {self.thing}?\n\nThe {self.thing} is",
            length=length,
            new_tokens=self.new_tokens,
        )
        return Example(ids, (digits,), seed, asked, placed[0])

    def _noise(self, source: HaySource) -> Callable[[int], Hay]:
        if self.lines is None:
            return partial(source.before, 0)
        lines = Hay.of(source.units * self.lines)
        return lambda room: lines


def five_digits(rng: random.Random) -> str:
    """Five random digits; the first may be 0."""
    return "".join(rng.choices("0123456789", k=5))


def ten_digits(rng: random.Random) -> str:
    """Ten digits, five drawn and five of them doubled where they stand, so that runs have to be copied exactly."""
    digits = rng.choices("0123456789", k=5)
    for _ in range(5):
        place = rng.randrange(len(digits))
        digits.insert(place, digits[place])
    return "".join(digits)


@dataclass(frozen=True)
class KeyValues:
    """A JSON object of UUIDs, and one of its keys.

    Attributes:
        pairs: so many; None: as many as fill the length.
    """

    name: str
    pairs: int | None = None

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        key, value = _uuid(rng), _uuid(rng)
        asked = rng.random() if depth is None else depth
        wanted = f'"{key}": "{value}"'
        head = opening(tokenizer, "Extract the value corresponding to the specified key in the JSON object below.\n")
        question = f'\n\n\nKey: "{key}"\nThe value associated with the specified key is:'
        tail = piece(tokenizer, question)
        room = length - NEW_TOKENS[KV] - len(head) - len(tail)
        draws = (f'"{_uuid(rng)}": "{_uuid(rng)}"' for _ in count())
        if self.pairs is None:
            others = _fitting_items(tokenizer, draws, room - len(piece(tokenizer, f" {wanted},")))
        else:
            others = [next(draws) for _ in range(self.pairs - 1)]
        while True:
            place = round(asked * len(others))
            items = [*others[:place], wanted, *others[place:]]
            pieces = listed(tokenizer, items, ("\nJSON data:\n{", "}"))
            size = sum(map(len, pieces))
            if size <= room:
                break
            if self.pairs is not None or not others:
                raise too_few(self.name, length, length - room + size)
            others.pop()
        pad = noise_tail(tokenizer, room - size if self.pairs is None else 0)
        body = [token for ids in pieces for token in ids]
        lies_at = sum(map(len, pieces[:place])) / max(size - len(pieces[place]), 1)
        return Example(head + pad + body + tail, (value,), seed, asked, lies_at)


FINDS = {  # the place among the different numbers in order; the median is of all numbers
    "largest": -1,
    "second largest": -2,
    "third largest": -3,
    "smallest": 0,
    "second smallest": 1,
    "third smallest": 2,
    "median": None,
}


@dataclass(frozen=True)
class MathFind:
    """A list of whole numbers below 100, of which one is to be found: the seven kinds of ``FINDS`` in turn, by seed.

    The list's greatest or smallest possible number is drawn first, as in the original, or the answer would always be 99
    or 0. A list made to length has an odd number of numbers if the median is asked for, so that it is whole.

    Attributes:
        numbers: so many; None: as many as fill the length.
    """

    name: str
    numbers: int | None = None

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=False)
        rng = random.Random(seed)
        kind = list(FINDS)[seed % len(FINDS)]
        low, high = 0, 99
        if "largest" in kind or (kind == "median" and rng.random() < 0.5):
            high = rng.randint(79, 99)
        else:
            low = rng.randint(0, 19)
        verb = "Calculate" if kind == "median" else "Find"
        head = opening(tokenizer, f"{verb} the {kind} number from the list below:\n")
        question = "\n\nYou should answer with only one number, no other words. The {} number of the list is:"
        tail = piece(tokenizer, question.format(kind))
        room = length - NEW_TOKENS[MATH_FIND] - len(head) - len(tail)
        numbers = rng.sample(range(low, high + 1), 3)  # three that differ, so that there is a third largest
        if self.numbers is None:
            draws = (str(rng.randint(low, high)) for _ in count())
            taken = sum(map(len, _pieces(tokenizer, numbers)))
            numbers += map(int, _fitting_items(tokenizer, draws, room - taken))
        else:
            numbers += [rng.randint(low, high) for _ in range(self.numbers - 3)]
        while True:
            if self.numbers is None and kind == "median" and len(numbers) % 2 == 0:
                numbers.pop()
            pieces = _pieces(tokenizer, numbers)
            size = sum(map(len, pieces))
            if size <= room:
                break
            if self.numbers is not None or len(numbers) == 3:
                raise too_few(self.name, length, length - room + size)
            numbers.pop()
        pad = noise_tail(tokenizer, room - size if self.numbers is None else 0)
        body = [token for ids in pieces for token in ids]
        return Example(head + pad + body + tail, (f"{find(numbers, kind):g}",), seed, None, None)


def _pieces(tokenizer: Any, numbers: list[int]) -> list[list[int]]:
    return listed(tokenizer, [str(number) for number in numbers], ("\n[", "]"))


def find(numbers: Sequence[int], kind: str) -> float:
    """The number of that kind, one of ``FINDS``."""
    rank = FINDS[kind]
    return statistics.median(numbers) if rank is None else sorted(set(numbers))[rank]


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _fitting_items(tokenizer: Any, draws: Iterator[str], room: int) -> list[str]:
    """As many items as fit in the middle of a list."""
    return [text[1:-1] for text in fitting(tokenizer, (f" {item}," for item in draws), room)]


def _tasks(
    name: str, make: Callable[[str, int | None], Build], score: Score, summary: str, size: int, things: str
) -> tuple[Task, Task]:
    """Both forms of a task, of which the official one has ``size`` ``things``."""

    def task(name: str, summary: str, size: int | None) -> Task:
        return Task(
            name=name,
            version=1,
            paper="Zhang et al., 2024, arXiv 2402.13718",
            summary=summary,
            new_tokens=new_tokens,
            build=make(name, size),
            score=score,
            at_depths=make is not MathFind,
            until=number_complete if score is first_integer else None,
        )

    new_tokens, official = NEW_TOKENS[name], f"{summary}; {size:,} {things}, the length is a limit"
    return task(name, summary, None), task(f"{name}-official", official, size)


_digits = partial(HiddenDigits, thing="sequence of digits", memorize="", new_tokens=NEW_TOKENS[NUMBER], draw=ten_digits)
_passkey = partial(
    HiddenDigits, thing="pass key", memorize=" and memorize them", new_tokens=NEW_TOKENS[PASSKEY], draw=five_digits
)

INFINITEBENCH_SYNTHETIC = (
    *_tasks(KV, KeyValues, word_in_answer, "the value of one key of a JSON object of UUIDs", PAIRS, "pairs"),
    *_tasks(NUMBER, _digits, first_integer, "ten digits with repetitions, hidden in noise", LINES, "lines"),
    *_tasks(PASSKEY, _passkey, first_integer, "five digits hidden in noise", LINES, "lines"),
    *_tasks(MATH_FIND, MathFind, first_number, "one number of a list, such as the largest", NUMBERS, "numbers"),
)
