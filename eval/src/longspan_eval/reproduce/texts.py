"""Texts: the papers' own, by the files they are read from, and one that is always at hand, as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longspan_eval.filler import encode, start
from longspan_eval.measure import digest
from longspan_eval.windows import standard_name, standard_text


@dataclass(frozen=True)
class Text:
    """A text as tokens.

    Attributes:
        name: what it is.
        ids: its tokens, after the one that the tokenizer puts before a text, if it does so.
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
    """A text that a table reads from a file: its name in the paper, the file's in the data folder, where to get it."""

    name: str
    file: str
    source: str


PG19 = Corpus("PG19", "perplexity/pg19.txt", "deepmind/pg19: its test books one after the other, as UTF-8 text")
PROOF_PILE = Corpus(
    "Proof-pile",
    "perplexity/proof-pile.txt",
    "hoskinson-center/proof-pile: test documents one after the other, as UTF-8 text",
)


def at_hand(tokenizer: Any) -> Text:
    """The text that ``longspan eval perplexity`` reads where none is given."""
    return _encoded(tokenizer, standard_name(), standard_text())


@lru_cache(maxsize=4)
def _encoded(tokenizer: Any, name: str, text: str) -> Text:
    return Text.of(name, start(tokenizer) + encode(tokenizer, text))
