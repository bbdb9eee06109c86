"""Long texts to hide sentences in: cut to any number of tokens, with the places known where a sentence can go."""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from longspan_eval.filler import NOISE, FillerName
from longspan_eval.tasks.fragments import inside, opening, piece, too_few

_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z\"'(])")
NOISE_LINE = "\n" + NOISE.strip()


@dataclass(frozen=True)
class Hay:
    """A text as tokens.

    Attributes:
        ids: the tokens.
        gaps: the indices into ``ids`` where something can be put in, ascending, the first 0 and the last ``len(ids)``.
    """

    ids: list[int]
    gaps: list[int]

    @classmethod
    def of(cls, units: Sequence[list[int]]) -> Hay:
        """Units one after the other, with a gap between any two."""
        ids: list[int] = []
        gaps = [0]
        for unit in units:
            ids += unit
            gaps.append(len(ids))
        return cls(ids, gaps)

    def nearest(self, depth: float) -> int:
        """The gap nearest to ``depth``, 0 the start and 1 the end; of two as near the earlier one."""
        target = depth * len(self.ids)
        n = bisect_left(self.gaps, target)
        return min(self.gaps[max(n - 1, 0) : n + 1], key=lambda gap: abs(gap - target))

    def back(self, depth: float) -> int:
        """The last gap at ``depth`` or before."""
        return self.gaps[bisect_right(self.gaps, depth * len(self.ids)) - 1]

    def with_needles(self, needles: Sequence[tuple[int, list[int]]]) -> list[int]:
        """The tokens with each needle put in at its gap; those at one gap in the order given."""
        out: list[int] = []
        done = 0
        for gap, ids in sorted(needles, key=lambda needle: needle[0]):
            out += self.ids[done:gap] + ids
            done = gap
        return out + self.ids[done:]


class HaySource:
    """Units of text, sentences or lines, as tokens. Read round again if more is asked than there is.

    Args:
        units: the tokens of each.
    """

    def __init__(self, units: Sequence[list[int]]) -> None:
        self.units = [unit for unit in units if unit]
        if not self.units:
            raise ValueError("the tokenizer makes no tokens of the text to hide things in")

    def passage(self, rng: random.Random) -> Callable[[int], Hay]:
        """A text of any number of tokens that ends at a random place, the same however long it is."""
        return partial(self.before, rng.randrange(len(self.units)))

    def before(self, end: int, room: int) -> Hay:
        """The ``room`` tokens before unit ``end``. They end with a whole unit; the first may lack its beginning."""
        picked: list[list[int]] = []
        n = end
        while room > 0:
            n -= 1
            unit = self.units[n % len(self.units)][-room:]
            picked.append(unit)
            room -= len(unit)
        return Hay.of(picked[::-1])


@lru_cache(maxsize=8)
def noise(tokenizer: Any) -> HaySource:
    """The sentences of the passkey task (Mohtashami & Jaggi, 2023), a line of them the unit."""
    return HaySource([piece(tokenizer, NOISE_LINE)])


@lru_cache(maxsize=8)
def prose(tokenizer: Any) -> HaySource:
    """The prose that ships with longspan, a sentence the unit."""
    from longspan.bundled import heldout_text

    texts: list[str] = []
    for line in heldout_text().splitlines():
        first, *others = _SENTENCE_END.split(line.strip())
        texts += [f"\n{first}", *(f" {other}" for other in others)]
    return HaySource(inside(tokenizer, texts))


def text_of(tokenizer: Any, kind: FillerName, rng: random.Random) -> Callable[[int], Hay]:
    """A text of any number of tokens: lines of noise, or prose that ends at a random place."""
    return prose(tokenizer).passage(rng) if kind == "prose" else partial(noise(tokenizer).before, 0)


def noise_tail(tokenizer: Any, count: int) -> list[int]:
    """``count`` tokens of noise, to bring to length what is made of whole entries."""
    return noise(tokenizer).before(0, count).ids


@dataclass(frozen=True)
class Needle:
    """A sentence to hide.

    Attributes:
        text: with what sets it off from the sentence before.
        depth: where it is to go, 0 the start of the text and 1 its end.
    """

    text: str
    depth: float


def hide(
    tokenizer: Any,
    name: str,
    grow: Callable[[int], Hay],
    needles: Sequence[Needle],
    *,
    before: str,
    after: str,
    length: int,
    new_tokens: int,
    back: bool = False,
) -> tuple[list[int], list[float]]:
    """A prompt: ``before``, a text with needles in it, and ``after``.

    Args:
        grow: the text, told how many tokens there is room for.
        needles: each goes whole to the gap nearest to its depth.
        length: tokens of prompt and answer.
        new_tokens: tokens left free for the answer.
        back: put a needle to the last gap before its depth instead of the nearest one.

    Returns:
        the tokens, and where each needle lies: the share of the text that comes before it.

    Raises:
        ValueError: the length is too short.
    """
    head, tail = opening(tokenizer, before), piece(tokenizer, after)
    pieces = inside(tokenizer, [needle.text for needle in needles])
    room = length - new_tokens - len(head) - len(tail) - sum(map(len, pieces))
    hay = grow(max(room, 0))
    size = len(hay.ids)
    if size > room:
        raise too_few(name, length, length - room + size)
    gaps = [hay.back(needle.depth) if back else hay.nearest(needle.depth) for needle in needles]
    body = hay.with_needles(list(zip(gaps, pieces, strict=True)))
    return head + body + tail, [gap / size if size else 0.0 for gap in gaps]
