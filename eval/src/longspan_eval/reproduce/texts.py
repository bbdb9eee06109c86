"""Texts: the papers' own, by the files they are read from, and one that is always at hand, as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longspan.bundled import heldout_text
from longspan.text.encode import beginning, encode
from longspan_eval.measure import digest
from longspan_eval.windows import STANDARD


@dataclass(frozen=True)
class Text:
    """A text as tokens.

    Attributes:
        ids: its tokens, after those that the tokenizer puts before it.
        sha256: of those.
    """

    name: str
    ids: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, name: str, ids: list[int]) -> Text:
        return cls(name, tuple(ids), digest(ids))


@dataclass(frozen=True)
class Corpus:
    """Documents that a table reads, a file each: their name in the paper, the folder they lie in, where to get them.

    Attributes:
        documents: as many as the paper reads, the first by name that are long enough; None: all that are.
    """

    name: str
    folder: str
    source: str
    documents: int | None = None


_BOOKS = "books of deepmind/pg19, a UTF-8 file *.txt each"
PG19_TEST = Corpus("PG19 (test)", "perplexity/pg19-test", f"the test {_BOOKS}", documents=100)
PG19_VALIDATION = Corpus("PG19 (validation)", "perplexity/pg19-validation", f"the validation {_BOOKS}")
PROOF_PILE = Corpus(
    "Proof-pile (test)",
    "perplexity/proof-pile-test",
    "test documents of hoskinson-center/proof-pile, a UTF-8 file *.txt each",
    documents=100,
)


def at_hand(tokenizer: Any) -> Text:
    """The text that ``longspan eval perplexity`` reads if none is given."""
    return _encoded(tokenizer, STANDARD, heldout_text())


@lru_cache(maxsize=4)
def _encoded(tokenizer: Any, name: str, text: str) -> Text:
    return Text.of(name, beginning(tokenizer) + encode(tokenizer, text))
