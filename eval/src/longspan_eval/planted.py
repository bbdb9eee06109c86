"""Texts with things planted in them that a model reads once, and is asked for one by one.

A text's paragraphs are set apart by empty lines, and line ends inside a paragraph are the printer's, so that they
become spaces. It is taken by whole sentences from a token on, and what is planted goes between them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longspan.errors import LongspanError
from longspan_eval.tasks import facts
from longspan_eval.tasks.fragments import inside
from longspan_eval.tasks.haystack import Hay

TARGETS = 2048  # tokens at the end of a text whose loss is taken
ROOM = 64  # tokens left free for a question and its answer
_OF_A_KIND = 5  # of so many facts, at most one more of each kind
_SENTENCE_END = re.compile(r"(?<=[.!?;])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.) +(?=[A-Z\"'(_])")


@dataclass(frozen=True)
class PlantedItem:
    """One thing planted: the sentence that says it, what comes after the text to ask for it, and the answer."""

    statement: str
    question: str
    value: str


@dataclass(frozen=True)
class Planted:
    """A text, and what was planted in it.

    Attributes:
        scored: the indices of those of its own tokens at its end whose loss is taken.
        asked: in the order of their depths.
    """

    input_ids: list[int]
    scored: tuple[int, ...]
    asked: tuple[PlantedItem, ...]
    source: str


def plant(
    tokenizer: Any,
    head: Sequence[int],
    units: Sequence[list[int]],
    start: int,
    length: int,
    asked: tuple[PlantedItem, ...],
    source: str,
    *,
    depths: Sequence[float],
    targets: int,
) -> Planted:
    """A text of ``length`` tokens together with a question and its answer, for which ``ROOM`` tokens are left.

    Args:
        head: the tokens that it begins with.
        units: the tokens of each of its sentences, of which those from token ``start`` on are taken.
        depths: where what is ``asked`` is planted, 0 to 1.
        targets: of the last so many tokens, those of the text itself are scored, but for those that follow on a
            planted sentence.

    Raises:
        ValueError: the text ends before that.
    """
    needles = inside(tokenizer, [one.statement for one in asked])
    room = length - ROOM - len(head) - sum(map(len, needles))
    hay = Hay.of(list(_from(units, start, room)))
    if room < 1 or len(hay.ids) < room:
        raise ValueError(f"{source} has no {length} tokens from token {start} on")
    gaps = [hay.nearest(depth) for depth in depths]
    body = [*head, *hay.with_needles(list(zip(gaps, needles, strict=True)))]
    own = _own(len(head), len(hay.ids), list(zip(gaps, map(len, needles), strict=True)))
    first = max(len(body) - targets, 1) if targets else len(body)
    return Planted(body, tuple(index for index in own if index >= first), asked, source)


def evenly(count: int) -> list[float]:
    """The depths of so many things at equal distances."""
    return [(n + 0.5) / count for n in range(count)]


def says(answer: str, value: str) -> bool:
    """Whether an answer has the value as a word."""
    return re.search(rf"\b{re.escape(value)}\b", answer, re.IGNORECASE) is not None


def draw_facts(rng: random.Random, text: str, count: int) -> tuple[PlantedItem, ...]:
    """Facts about nobody of the text, few of a kind, which the words of the question tell apart.

    Raises:
        LongspanError: the text has too many of the people that facts can be about.
    """
    free = [name for name in facts.PEOPLE if name not in text]
    if len(free) < count:
        raise LongspanError(
            f"the text names {len(facts.PEOPLE) - len(free)} of the {len(facts.PEOPLE)} people that facts are planted "
            f"about, and {count} are needed that it does not name; take a part of it, or another text"
        )
    while True:
        drawn = facts.draw(rng, count)
        kinds = Counter(fact.question.replace(fact.name, "") for fact in drawn)
        if max(kinds.values()) <= -(-count // _OF_A_KIND) and not any(fact.name in text for fact in drawn):
            break
    frame = facts.FRAME.format(question="")
    return tuple(
        PlantedItem(
            f" {fact.statement}",
            f"\n\n---\n\nA question about the text above. {fact.question.removeprefix(frame)}\n\nAnswer: {fact.answer}",
            fact.value,
        )
        for fact in drawn
    )


@lru_cache(maxsize=8)
def sentences(text: str, tokenizer: Any) -> list[list[int]]:
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
    """Where the text's own tokens lie, but for those that follow on a needle."""
    for n in range(size):
        if not any(gap == n for gap, _ in needles):
            yield first + n + sum(length for gap, length in needles if gap <= n)
