"""Texts with things planted in them that a real model reads once, and is asked for one by one.

``facts``: a novel and facts about people who are not in it. ``keys``: RULER's essays, or noise, and RULER's magic
numbers of several keys. ``pass key``: the same texts and one pass key. What is planted lies at equal distances; a
single one where the number of the text puts it.

A novel is a text file; its paragraphs are set apart by empty lines, and line ends inside a paragraph are the
printer's, so that they become spaces. Text ``n`` of six novels is of novel ``n mod 6``, of its part ``n // 6``,
whatever its length: a longer text of one number only goes on.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.errors import LongspanError
from longspan.text.encode import beginning
from longspan_eval import passkey
from longspan_eval.tasks import facts
from longspan_eval.tasks.fragments import inside, opening, piece
from longspan_eval.tasks.haystack import NOISE_LINE, Hay
from longspan_eval.tasks.ruler_niah import NEEDLE, QUESTION, TASK
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

Kind = Literal["facts", "keys in noise", "keys in essays", "pass key in noise", "pass key in essays"]
KINDS: tuple[Kind, ...] = get_args(Kind)

PART = 33_000  # tokens from the beginning of one part of a text to that of the next
COUNT = 10  # facts or keys of a text
TARGETS = 2048  # tokens at the end of a novel whose loss is taken
ROOM = 64  # tokens left free for a question and its answer
ESSAYS = "PaulGrahamEssays.json"  # as RULER's generator writes it
_SENTENCE_END = re.compile(r"(?<=[.!?;])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.) +(?=[A-Z\"'(_])")
_NUMBER = {"some": "Some", "are": "is", "are_all": "is", "values": "number"}


@dataclass(frozen=True)
class Asked:
    """One thing planted: the sentence that says it, what comes after the text to ask for it, and the answer."""

    statement: str
    question: str
    value: str


@dataclass(frozen=True)
class Planted:
    """A text, and what was planted in it.

    Attributes:
        input_ids: its tokens.
        scored: the indices of a novel's own tokens among the last ``TARGETS``; of other texts none.
        asked: in the order of their depths.
        source: the name of the novel's file, without the ending; else what the text is of.
    """

    input_ids: list[int]
    scored: tuple[int, ...]
    asked: tuple[Asked, ...]
    source: str


class Texts:
    """The novels of a folder in the order of their names, and RULER's essays if they lie there or beside it.

    Raises:
        LongspanError: there is no novel.
    """

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self._files = sorted(folder.glob("*.txt"))
        if not self._files:
            raise LongspanError(f"{folder} holds no text files; give a folder of novels, each a .txt file")
        self._essays = next((at for at in (folder / ESSAYS, folder.parent / ESSAYS) if at.is_file()), None)
        self._tokenizer = tokenizer

    def planted(self, kind: Kind, number: int, length: int) -> Planted:
        """Text ``number`` of a kind, of ``length`` tokens together with a question and its answer.

        Raises:
            ValueError: the text ends before that, or there are no essays.
        """
        tokenizer, rng = self._tokenizer, random.Random(number)
        before, asked, units, start, source = self._parts(kind, number, rng)
        head = opening(tokenizer, before) if before else beginning(tokenizer)
        needles = inside(tokenizer, [one.statement for one in asked])
        room = length - ROOM - len(head) - sum(map(len, needles))
        hay = Hay.of(list(_from(units, start, room)))
        if len(hay.ids) < room:
            raise ValueError(f"{source} has no {length} tokens from token {start} on")
        depths = [rng.random()] if len(asked) == 1 else [(n + 0.5) / len(asked) for n in range(len(asked))]
        gaps = [hay.nearest(depth) for depth in depths]
        body = head + hay.with_needles(list(zip(gaps, needles, strict=True)))
        scored: tuple[int, ...] = ()
        if kind == "facts":
            own = _own(len(head), len(hay.ids), list(zip(gaps, map(len, needles), strict=True)))
            scored = tuple(index for index in own if index >= max(len(body) - TARGETS, 1))
        return Planted(body, scored, asked, source)

    def _parts(
        self, kind: Kind, number: int, rng: random.Random
    ) -> tuple[str, tuple[Asked, ...], Sequence[list[int]], int, str]:
        """What comes before the text, what is asked, the text's sentences, at which token it begins, and its name."""
        if kind == "facts":
            part, n = divmod(number, len(self._files))
            file = self._files[n]
            text = file.read_text(encoding="utf-8")
            return "", _facts(rng, text), _units(text, self._tokenizer), part * PART, file.stem
        asked = _keys(rng) if kind.startswith("keys") else _pass_key(rng)
        before = (
            TASK.format(**{**_NUMBER, "are": "are", "values": "numbers"}) if kind.startswith("keys") else passkey.TASK
        )
        if kind.endswith("noise"):
            return before.rstrip("\n"), asked, [piece(self._tokenizer, NOISE_LINE)] * 20_000, 0, "noise"
        if self._essays is None:
            raise ValueError(f"there is no {ESSAYS} in the folder of texts, nor beside it")
        units = _units(json.loads(self._essays.read_text(encoding="utf-8"))["text"], self._tokenizer)
        return before.rstrip("\n"), asked, units, number * PART, "essays"


def says(answer: str, value: str) -> bool:
    """Whether an answer has the value as a word."""
    return re.search(rf"\b{re.escape(value)}\b", answer, re.IGNORECASE) is not None


def _facts(rng: random.Random, text: str) -> tuple[Asked, ...]:
    """Facts about nobody of the novel, at most two of a kind, which the words of the question tell apart."""
    while True:
        drawn = facts.draw(rng, COUNT)
        kinds = Counter(fact.question.replace(fact.name, "") for fact in drawn)
        if max(kinds.values()) <= 2 and not any(fact.name in text for fact in drawn):
            break
    frame = facts.FRAME.format(question="")
    return tuple(
        Asked(
            f" {fact.statement}",
            f"\n\n---\n\nA question about the text above. {fact.question.removeprefix(frame)}\n\nAnswer: {fact.answer}",
            fact.value,
        )
        for fact in drawn
    )


def _keys(rng: random.Random) -> tuple[Asked, ...]:
    """Magic numbers of several keys, each asked for in RULER's words."""
    adjectives, nouns = rng.sample(ADJECTIVES, COUNT), rng.sample(NOUNS, COUNT)
    numbers = rng.sample(range(1_000_000, 10_000_000), COUNT)
    named = [(f"{adjective}-{noun}", str(n)) for adjective, noun, n in zip(adjectives, nouns, numbers, strict=True)]
    return tuple(
        Asked(" " + NEEDLE.format(values="numbers", key=key, value=value), QUESTION.format(**_NUMBER, query=key), value)
        for key, value in named
    )


def _pass_key(rng: random.Random) -> tuple[Asked, ...]:
    key = str(rng.randint(10_000, 99_999))
    return (Asked(passkey.NEEDLE.format(key=key).rstrip("\n"), passkey.QUESTION, key),)


@lru_cache(maxsize=8)
def _units(text: str, tokenizer: Any) -> list[list[int]]:
    """The tokens of each sentence of a text."""
    texts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        first, *others = _SENTENCE_END.split(" ".join(paragraph.split()))
        texts += [f"\n\n{first}" if texts else first, *(f" {other}" for other in others)]
    return inside(tokenizer, texts)


def _from(units: Sequence[list[int]], start: int, room: int) -> Iterator[list[int]]:
    """Whole sentences from token ``start`` on, the last cut so that they are ``room`` tokens."""
    at = 0
    for unit in units:
        if at >= start and room > 0:
            yield unit[:room]
            room -= len(unit)
        at += len(unit)


def _own(first: int, size: int, needles: list[tuple[int, int]]) -> Iterator[int]:
    """Where the novel's own tokens lie, but for those that follow on a needle."""
    for n in range(size):
        if not any(gap == n for gap, _ in needles):
            yield first + n + sum(length for gap, length in needles if gap <= n)
