"""A text as sentences, or as lines where it has no sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 400  # characters of a part
# What ends a sentence, with the quotes and brackets that close after it, before a space; or ends it by itself. A match
# begins where a run of such characters does, and none is given back: else a long run would take quadratic time.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|(?<![。！？])[。！？]++[”’」』）]*+|\n\s*\n")
_TITLES = re.compile(
    r"(?:^|[\s(\"'“‘])(?:Mr|Mrs|Ms|Dr|Prof|St|Sir|Rev|Capt|Col|Gen|Lt|vs|etc|No|pp?|e\.g|i\.e|[A-Z])\.$"
)
_BREAKS = "\n", " "  # where a part that is too long is cut, the best first


def sentences(text: str) -> list[tuple[int, int]]:
    """The parts of a text, ``[first, last)`` in characters: whole words, in order, with nothing but space between.

    A part is a sentence, or what stands between two empty lines. One of over ``LONGEST`` characters, as code and tables
    have, is cut where a line ends, or else between words.
    """
    found, at = list[tuple[int, int]](), 0
    for end in (*_ends(text), len(text)):
        first, last = _stripped(text, at, end)
        found += _cut(text, first, last)
        at = end
    return found


def _ends(text: str) -> Iterator[int]:
    for match in _END.finditer(text):
        before = text[max(match.start() - 12, 0) : match.start() + 1]
        if match[0] != "." or not _TITLES.search(before):
            yield match.end()


def _cut(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    while last - first > LONGEST:
        cuts = (text.rfind(one, first + LONGEST // 4, first + LONGEST) for one in _BREAKS)
        at = next((cut for cut in cuts if cut > first), first + LONGEST)
        begin, end = _stripped(text, first, at)
        if begin < end:
            yield begin, end
        first, last = _stripped(text, at, last)
    if first < last:
        yield first, last


def _stripped(text: str, first: int, last: int) -> tuple[int, int]:
    while first < last and text[first].isspace():
        first += 1
    while first < last and text[last - 1].isspace():
        last -= 1
    return first, last
