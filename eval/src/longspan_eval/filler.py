"""Text to hide things in: tokenized once, cut to any length, with its sentence ends known."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any, Literal

from longspan.bundled import heldout_text
from longspan.text.encode import encode

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
FILLERS = ("noise", "prose")

FillerName = Literal["noise", "prose"]


class Filler:
    """A text as tokens. One that is shorter than what is asked of it is read round again.

    Args:
        text: paragraphs one to a line, or sentences in one line.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._ids = encode(tokenizer, text)
        if not self._ids:
            raise ValueError("the text to hide things in is empty")
        pieces = {token: tokenizer.decode([token]).rstrip(" ") for token in set(self._ids)}
        self._sentence_ends = {token for token, piece in pieces.items() if piece.endswith((".", "\n"))}
        lines = {token for token, piece in pieces.items() if piece.endswith("\n")}
        self._line_ends = [n + 1 for n, token in enumerate(self._ids) if token in lines] or [len(self._ids)]

    def before(self, end: int, count: int) -> list[int]:
        """The ``count`` tokens before ``end``, an index into the text."""
        return [self._ids[n % len(self._ids)] for n in range(end - count, end)]

    def draw_end(self, rng: random.Random) -> int:
        """A random place where a line ends; the end of the text if it has but one line."""
        return rng.choice(self._line_ends)

    def sentence_end(self, ids: list[int], target: int) -> int:
        """The index into ``ids`` nearest to ``target``, within 64, where a sentence has ended; else ``target``."""
        for distance in range(65):
            for index in (target - distance, target + distance):
                if index in (0, len(ids)) or (0 < index < len(ids) and ids[index - 1] in self._sentence_ends):
                    return index
        return target


@lru_cache(maxsize=8)
def load_filler(tokenizer: Any, name: str) -> Filler:
    """The filler of that name: the passkey task's own sentences, or the prose that ships with longspan."""
    if name not in FILLERS:
        raise ValueError(f"filler must be one of {', '.join(FILLERS)}, not {name!r}")
    return Filler(tokenizer, NOISE if name == "noise" else heldout_text())
