"""Okapi BM25 (Robertson & Zaragoza, 2009): how well short texts match a query."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence


class BM25:
    """Scores a fixed set of texts.

    ``score(q, d) = Σ_w idf(w) · f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|))`` over the words ``w`` of
    ``q``, repeated ones as often as they are there, with ``idf(w) = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))``, which is
    never negative. Words are runs of letters and digits, in lower case.

    Args:
        texts: at least one.
        k1: how fast a word said again counts less.
        b: how much a long text is marked down, 0 to 1.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.5, b: float = 0.75) -> None:
        if not texts:
            raise ValueError("BM25 needs at least one text")
        self._counts = [Counter(words(text)) for text in texts]
        sizes = [counts.total() for counts in self._counts]
        mean = sum(sizes) / len(sizes) or 1.0
        self._damping = [k1 * (1 - b + b * size / mean) for size in sizes]
        self._k1 = k1
        held = Counter(word for counts in self._counts for word in counts)
        self._idf = {word: math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for word, n in held.items()}

    def scores(self, query: str) -> list[float]:
        """The score of every text, in their order; 0.0 if it shares no word with the query."""
        asked = [word for word in words(query) if word in self._idf]
        return [
            math.fsum(self._idf[word] * counts[word] * (self._k1 + 1) / (counts[word] + damping) for word in asked)
            for counts, damping in zip(self._counts, self._damping, strict=True)
        ]

    def ranked(self, query: str) -> list[int]:
        """The indices of all texts, the best match first; of equal ones the earlier first."""
        scores = self.scores(query)
        return sorted(range(len(scores)), key=lambda n: (-scores[n], n))


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"[^\W_]+", text.lower())
