"""Texts for perplexity and for looking at choices: the papers' own from files, and one that is always at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longspan.errors import DataError
from longspan.evaluation.filler import encode, start
from longspan.evaluation.sliding import read_tokens
from longspan.evaluation.windows import standard_name, standard_text
from longspan.reproduce.lab import Lab, digest


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
        return cls(name, tuple(ids), digest(",".join(map(str, ids))))


@dataclass(frozen=True)
class Corpus:
    """A text that a table reads from a file: its name in the paper, the file's in the data folder, where to get it."""

    name: str
    file: str
    source: str

    def read(self, lab: Lab) -> Text:
        """Its tokens.

        Raises:
            DataError: it is not there, or is no text.
        """
        if lab.data_dir is None:
            raise DataError(f"{self.file}: there is no data folder to read it from")
        return Text.of(self.name, read_tokens(lab.tokenizer, lab.data_dir / self.file))


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
