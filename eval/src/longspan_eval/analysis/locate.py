"""Find the tokens of a text in a token sequence, for any tokenizer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

_BLOCK = 256  # tokens decoded per call


def locate(tokenizer: Any, ids: Sequence[int], text: str) -> list[tuple[int, int]]:
    """Every occurrence of ``text`` as a span of tokens ``(first, one past the last)``, ascending.

    The search compares decoded characters, since one text has several encodings; so the first and the last token of a
    span may also contain other characters.

    Raises:
        ValueError: ``text`` is empty.
    """
    if not text:
        raise ValueError("the text to find is empty")

    def contains(a: int, b: int) -> bool:
        return text in tokenizer.decode(list(ids[a:b]), clean_up_tokenization_spaces=False)

    longest = 4 * len(text) + 8  # a character has at most four tokens, one per byte
    spans: set[tuple[int, int]] = set()
    for block in range(0, len(ids), _BLOCK):
        a, stop = block, min(block + _BLOCK + longest, len(ids))
        while contains(a, stop):
            high = bisect_left(range(stop), True, a + 1, key=partial(contains, a))  # the first occurrence's end
            first = high - 1
            while not contains(first, high):
                first -= 1
            spans.add((first, high))
            a = first + 1
    return sorted(spans)
