"""Texts that are parts of one book, each with facts planted in it."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from itertools import accumulate
from typing import Any

from longspan.errors import LongspanError
from longspan.text.encode import beginning
from longspan_eval.planted import ROOM, TARGETS, Planted, draw_facts, evenly, plant, sentences

KIND = "facts"
QUESTIONS = 15  # of a text; asking is cheap beside reading
SHORTEST = 512  # tokens of a text, of which those facts take about half
MOST = 64  # texts


class Book:
    """The texts of a book for one length.

    Args:
        length: tokens of a text with a question and its answer.

    Attributes:
        tokens: of the book. apart: how many texts have no token in common; later ones begin elsewhere in the book.
        digest: of all that its texts are made of.

    Raises:
        LongspanError: the book has too few tokens.
    """

    def __init__(self, text: str, name: str, tokenizer: Any, length: int, *, seed: int = 0) -> None:
        self.name, self._text, self._tokenizer, self._seed = name, text, tokenizer, seed
        self._units = sentences(text, tokenizer)
        self._begins = [0, *accumulate(map(len, self._units))]
        self.tokens = self._begins[-1]
        if length < SHORTEST:
            raise LongspanError(f"--length must be at least {SHORTEST} tokens, which {QUESTIONS} facts are planted in")
        if self.tokens < length:
            raise LongspanError(
                f"{name} has {self.tokens:,} tokens for this model, and {length:,} are needed; give a longer text by "
                "--text, or a shorter --length"
            )
        self.apart = self.tokens // length
        self.digest = hashlib.sha256(f"{QUESTIONS} {seed} {text}".encode()).hexdigest()

    def planted(self, kind: str, number: int, length: int) -> Planted:
        """Text ``number``, with facts of its own; of its last tokens, at most half are scored."""
        wanted = number * length % (self.tokens - length + 1)
        start = self._begins[bisect_right(self._begins, wanted) - 1]
        rng = random.Random(f"{self._seed} {number}")
        return plant(
            self._tokenizer, beginning(self._tokenizer), self._units, start, length,
            draw_facts(rng, self._text, QUESTIONS), self.name,
            depths=evenly(QUESTIONS), targets=min(TARGETS, (length - ROOM) // 2),
        )  # fmt: skip
