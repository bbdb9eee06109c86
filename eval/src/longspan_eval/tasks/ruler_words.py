"""RULER's aggregation tasks (Hsieh et al., 2024): the most common words of a list, and of a coded text.

The wording is RULER's (Apache-2.0), and so are the counts. Common words (CWE): ten words stand 30 times each in a
numbered list among others that stand 3 times each, after a worked example with 10 and 3; below 4,096 tokens it is 6 and
1, after 3 and 1, and so it is if a tokenizer needs so many tokens that the others do not fit. Frequent words (FWE):
a word of rank ``k`` stands in proportion to ``k ** -2``, as in a zeta distribution of exponent 2; that of rank 1 is
``...``, which does not count, and ranks 2 to 4 are asked for.

Words are those of the prose that ships with longspan and of lists of our own. If a list is so long that they do not
suffice, all of its counts are doubled, tripled and so on.
"""

from __future__ import annotations

import math
import random
import re
import string
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Any

from longspan_eval.task import Build, Example, Record, Task
from longspan_eval.tasks.fragments import check_asked, inside, opening, piece, too_few
from longspan_eval.tasks.haystack import noise_tail
from longspan_eval.tasks.scores import contained
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

CWE, CWE_NEW_TOKENS = "ruler-cwe", 120
CWE_TASK = "Below is a numbered list of words. In these words, some appear more often than others. "
CWE_TASK += "Memorize the ones that appear most often.\n"
CWE_QUESTION = "\nQuestion: What are the 10 most common words in the above list? "
CWE_QUESTION += "Answer: The top 10 words that appear most often in the list are:"
COMMON, SHORT = 10, 4096

FWE, FWE_NEW_TOKENS = "ruler-fwe", 50
FWE_TASK = "Read the following coded text and track the frequency of each coded word. "
FWE_TASK += "Find the three most frequently appeared coded words."
FWE_QUESTION = "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
FWE_QUESTION += "frequently appeared words in the above coded text? Answer: According to the coded text above, the "
FWE_QUESTION += "three most frequently appeared words are:"
DOTS, LETTERS = "...", 6
LEAST_WORDS = 27  # so that rank 4 stands once


@dataclass(frozen=True)
class Counts:
    """How often words stand in a list: each common and each other word; and in the example, of so many words."""

    common: int
    other: int
    shown_words: int
    shown_common: int
    shown_other: int


LONG_COUNTS, SHORT_COUNTS = Counts(30, 3, 40, 10, 3), Counts(6, 1, 20, 3, 1)


@lru_cache(maxsize=1)
def vocabulary() -> tuple[str, ...]:
    """Words of three letters or more, in alphabetical order."""
    from longspan.bundled import heldout_text

    found = re.findall(r"(?<![\w.'-])[a-z]{3,14}(?![\w('-])", heldout_text())
    return tuple(sorted({*found, *ADJECTIVES, *NOUNS}))


@lru_cache(maxsize=8)
def _word_tokens(tokenizer: Any) -> dict[str, list[int]]:
    words = vocabulary()
    return dict(zip(words, inside(tokenizer, [f" {word}" for word in words]), strict=True))


def build_cwe(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """A numbered list of words; the ten common ones are asked for."""
    check_asked(CWE, depth, record, at_depths=False)
    least = 0
    for counts in (LONG_COUNTS, SHORT_COUNTS) if length >= SHORT else (SHORT_COUNTS,):
        example, least = _numbered_list(tokenizer, length, seed, counts)
        if example is not None:
            return example
    raise too_few(CWE, length, least)


def _numbered_list(tokenizer: Any, length: int, seed: int, counts: Counts) -> tuple[Example | None, int]:
    """The prompt with these counts, or None if it does not fit; and the least length for them."""
    rng = random.Random(seed)
    words = rng.sample(vocabulary(), len(vocabulary()))
    common, shown, others = (
        words[:COMMON],
        words[COMMON : COMMON + counts.shown_words],
        words[COMMON + counts.shown_words :],
    )
    head = opening(tokenizer, _shown(rng, shown, counts) + CWE_TASK)
    tail = piece(tokenizer, CWE_QUESTION)
    room = length - CWE_NEW_TOKENS - len(head) - len(tail)
    tokens = _word_tokens(tokenizer)
    numbers = _numbers(tokenizer, room, counts)
    number_sums = [0, *accumulate(map(len, numbers))]
    other_sums = [0, *accumulate(len(tokens[word]) for word in others)]
    common_size = sum(len(tokens[word]) for word in common)

    def size(used: int, times: int) -> int:
        entries = times * (COMMON * counts.common + used * counts.other)
        if entries >= len(number_sums):
            return room + 1
        return number_sums[entries] + times * (counts.common * common_size + counts.other * other_sums[used])

    def fits(times: int, used: int) -> bool:
        return size(used, times) <= room

    least = length - room + size(COMMON, 1)
    if length < least:
        return None, least
    for times in count(1):
        used = max_fitting(len(others), partial(fits, times))
        if used < len(others):
            break
    entries = [*common * (times * counts.common), *others[:used] * (times * counts.other)]
    rng.shuffle(entries)
    body = noise_tail(tokenizer, room - size(used, times))
    for number, word in zip(numbers, entries, strict=False):
        body += number + tokens[word]
    return Example(head + body + tail, tuple(common), seed, None, None), least


def _numbers(tokenizer: Any, room: int, counts: Counts) -> list[list[int]]:
    """The tokens of the numbers before entries: for as many entries as could fit, and for the shortest list."""
    numbers: list[list[int]] = []
    size = 0
    while size <= room or len(numbers) < COMMON * (counts.common + counts.other):
        batch = _thousand_numbers(tokenizer, len(numbers))
        numbers += batch
        size += sum(map(len, batch))
    return numbers


@lru_cache(maxsize=256)
def _thousand_numbers(tokenizer: Any, after: int) -> list[list[int]]:
    return inside(tokenizer, [f" {n}." if n > 1 else "\n1." for n in range(after + 1, after + 1001)])


def _shown(rng: random.Random, words: list[str], counts: Counts) -> str:
    """The worked example."""
    common, others = words[:COMMON], words[COMMON:]
    entries = common * counts.shown_common + others * counts.shown_other
    rng.shuffle(entries)
    return f"{CWE_TASK}{_numbered(entries)}{CWE_QUESTION} {_numbered(common)}\n"


def _numbered(words: list[str]) -> str:
    return " ".join(f"{n}. {word}" for n, word in enumerate(words, 1))


def build_fwe(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """A text of coded words; the three most frequent ones are asked for."""
    check_asked(FWE, depth, record, at_depths=False)
    rng = random.Random(seed)
    vocabulary = {DOTS: None}
    while len(vocabulary) < max(length // 50, 5):
        vocabulary["".join(rng.choices(string.ascii_lowercase, k=LETTERS))] = None
    words = list(vocabulary)
    head, tail = opening(tokenizer, FWE_TASK), piece(tokenizer, FWE_QUESTION)
    tokens = inside(tokenizer, [f" {word}" for word in words])
    room = length - FWE_NEW_TOKENS - len(head) - len(tail)

    def size(total: int) -> int:
        return sum(times * len(ids) for times, ids in zip(frequencies(total, len(words)), tokens, strict=True))

    if room < size(LEAST_WORDS):
        raise too_few(FWE, length, length - room + size(LEAST_WORDS))
    total = max_fitting(2 * room, lambda n: size(n) <= room)
    while frequencies(total, 5)[3] == frequencies(total, 5)[4]:
        total -= 1  # or the third most frequent word would be as frequent as another
    picked = [n for n, times in enumerate(frequencies(total, len(words))) for _ in range(times)]
    rng.shuffle(picked)
    left = room - size(total)
    body = (tokens[0] * left)[:left]
    for n in picked:
        body += tokens[n]
    return Example(head + body + tail, tuple(words[1:4]), seed, None, None)


def frequencies(total: int, ranks: int) -> list[int]:
    """How often each rank stands in about ``total`` words: ``total * k ** -2 / zeta(2)``, rounded down."""
    zeta = math.pi**2 / 6
    return [int(total / (zeta * k**2)) for k in range(1, ranks + 1)]


def max_fitting(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number of 0 to ``most`` that fits, if all below one that fits do too; 0 always does."""
    return bisect_right(range(1, most + 1), False, key=lambda n: not fits(n))


def _task(name: str, new_tokens: int, build: Build, summary: str) -> Task:
    return Task(
        name=name,
        version=1,
        paper="Hsieh et al., 2024, arXiv 2404.06654",
        summary=summary,
        new_tokens=new_tokens,
        build=build,
        score=contained,
    )


RULER_WORDS = (
    _task(CWE, CWE_NEW_TOKENS, build_cwe, "the ten most common words of a numbered list; the share named"),
    _task(FWE, FWE_NEW_TOKENS, build_fwe, "the three most frequent words of a coded text; the share named"),
)
