"""What training documents are put together from: words, passages of prose, and drafts of marked tokens."""

from __future__ import annotations

import random
import re
import string
import uuid

from transformers import PreTrainedTokenizerFast

from facts import EVALUATED, made_up
from longspan_eval.filler import NOISE
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z\"'(])")
HELDOUT_WORDS = EVALUATED | {*ADJECTIVES, *NOUNS}


class Material:
    """Words, sentences and noise, with their tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, documents: list[str], rng: random.Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.stream = [token for document in documents for token in self.encode("\n" + document + "\n")]
        self.units = [
            self.encode(text)
            for document in documents
            for line in document.splitlines()
            for n, sentence in enumerate(SENTENCE_END.split(line.strip()))
            for text in [f" {sentence}" if n else f"\n{sentence}"]
        ]
        self.noise = [self.encode(f"{' ' if n else chr(10)}{s}.") for n, s in enumerate(NOISE.strip(". ").split(". "))]
        words = set(re.findall(r"\b[a-z]{3,10}\b", " ".join(documents)))
        self.words = sorted(words - HELDOUT_WORDS)
        self.plain = range(3, len(tokenizer))
        self.signs = [self.encode(sign)[0] for sign in string.digits + string.ascii_letters + string.punctuation]

    def encode(self, text: str) -> list[int]:
        """Tokens of `text` alone, without `<s>`."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def passage(self, count: int) -> list[int]:
        """`count` tokens in a row of the training text, from anywhere."""
        start = self.rng.randrange(len(self.stream) - count)
        return self.stream[start : start + count]

    def filler(self, room: int, noise: bool) -> list[list[int]]:
        """At most `room` tokens in whole sentences, of the passkey task's noise or of one place of the prose."""
        source, units = (self.noise, []) if noise else (self.units, [])
        at = 0 if noise else self.rng.randrange(len(source))
        while len(source[at % len(source)]) <= room:
            units.append(source[at % len(source)])
            room -= len(units[-1])
            at += 1
        return units

    def random_tokens(self, count: int, signs: bool) -> list[int]:
        """Any tokens but the special ones; or single letters, digits and signs.

        These are few and frequent, so that copying is found early.
        """
        return [self.rng.choice(self.signs if signs else self.plain) for _ in range(count)]

    def word(self) -> str:
        """A word of the training text, or a made-up one; none of the evaluation's."""
        while True:
            word = self.rng.choice(self.words) if self.rng.random() < 0.6 else made_up(self.rng)
            if word not in HELDOUT_WORDS:
                return word

    def key(self) -> str:
        """What a value belongs to: mostly two words with a hyphen between them, as in RULER."""
        form = self.rng.random()
        if form < 0.55:
            return f"{self.word()}-{self.word()}"
        return self.word() if form < 0.9 else f"{self.word()} {self.word()}"

    def digits(self, least: int = 3, most: int = 8) -> str:
        """A whole number of so many digits; in every third one a digit is often equal to the one before it."""
        count, repeats = self.rng.randint(least, most), self.rng.random() < 1 / 3
        number = self.rng.choice(string.digits[1:])
        while len(number) < count:
            number += number[-1] if repeats and self.rng.random() < 0.6 else self.rng.choice(string.digits)
        return number

    def uuid(self) -> str:
        """A random UUID."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))


class Draft:
    """Tokens of a row so far, with their marks."""

    IGNORE, TEXT, ANSWER = 0, 1, 2

    def __init__(self, material: Material) -> None:
        self.material = material
        self.ids: list[int] = []
        self.marks: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, ids: list[int], mark: int) -> None:
        """Append tokens."""
        self.ids += ids
        self.marks += [mark] * len(ids)

    def text(self, text: str, mark: int = IGNORE) -> None:
        """Append a text that begins where a token does: with a space, a line end or a sign."""
        self.tokens(self.material.encode(text), mark)

    def ask(self, question: str, answer: str) -> None:
        """Append a question and its answer, which begins with a space; the end of the line is part of it."""
        self.text(question)
        self.text(f"{answer}\n", self.ANSWER)

    def hide(self, sentences: list[str], room: int, noise: bool, *, ordered: bool = False) -> None:
        """Append a text of about `room` tokens with the sentences between any two of its own.

        Args:
            sentences: each with the space or line end that it begins with.
            room: tokens of everything; the sentences come whole even if they take more.
            noise: whether the text is noise rather than prose.
            ordered: whether the sentences keep their order.
        """
        hidden = [self.material.encode(sentence) for sentence in sentences]
        units = self.material.filler(room - sum(map(len, hidden)), noise)
        if not ordered:
            self.material.rng.shuffle(hidden)
        places = sorted(self.material.rng.randint(0, len(units)) for _ in hidden)
        for n in range(len(units) + 1):
            while places and places[0] == n:
                self.tokens(hidden.pop(0), self.IGNORE)
                places.pop(0)
            if n < len(units):
                self.tokens(units[n], self.IGNORE if noise else self.TEXT)
