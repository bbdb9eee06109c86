"""Find where a text lies among tokens, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BLOCK = 256  # tokens decoded at once


def locate(tokenizer: Any, ids: Sequence[int], text: str) -> list[tuple[int, int]]:
    """Every place where ``text`` is among the tokens, as ``(first, one past the last)``, ascending.

    The first and the last token may have other characters too: what counts is what is read, not how it was encoded.

    Args:
        tokenizer: a transformers tokenizer.
        ids: tokens.
        text: to look for, not empty.
    """
    if not text:
        raise ValueError("the text to look for is empty")

    def there(a: int, b: int) -> bool:
        return text in tokenizer.decode(list(ids[a:b]), clean_up_tokenization_spaces=False)

    reach = 4 * len(text) + 8  # a character takes at most four tokens, those of its bytes
    found: set[tuple[int, int]] = set()
    for block in range(0, len(ids), _BLOCK):
        a, stop = block, min(block + _BLOCK + reach, len(ids))
        while there(a, stop):
            low, high = a + 1, stop  # the end of the first occurrence: the least b with the text in a : b
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if there(a, middle) else (middle + 1, high)
            first = high - 1
            while not there(first, high):
                first -= 1
            found.add((first, high))
            a = first + 1
    return sorted(found)
