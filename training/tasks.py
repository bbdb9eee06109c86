"""Training sequences: copying, passkeys, several named keys, pairs, and plain prose.

Each sequence is token ids with a mark for each token as a target: `TEXT` where the language-model loss
counts, `IGNORE` for what nobody could predict (the digits of a key when it is first named), and `ANSWER`
where the token can only come from copying. Keys, depths and passages are fresh in every sequence, so there is
nothing to learn by heart.
"""

from __future__ import annotations

import random
import re

import torch
from transformers import PreTrainedTokenizerFast

from longspan_eval.passkey import NEEDLE, NOISE, QUESTION, TASK

ANSWER = 2
IGNORE = 0
TEXT = 1
NAMED = "\nThe pass key of {name} is {key}. Remember it. {key} is the pass key of {name}.\n"
NAMED_QUESTION = "\nWhat is the pass key of {name}? The pass key of {name} is {key}."


class Sampler:
    """Draws batches `(ids, weights)`, both of shape (rows, length), from the training documents."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, documents: list[str], seed: int) -> None:
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
        self.stream: list[int] = []
        for document in documents:
            self.stream += self.encode(document + "\n\n")
        self.noise = self.encode(NOISE)
        self.task = self.encode(TASK)
        words = re.findall(r"\b[a-z]{3,9}\b", " ".join(documents))
        self.words = sorted({word for word in words})
        self.plain = range(3, len(tokenizer))

    def encode(self, text: str) -> list[int]:
        """Tokens of `text` alone, without `<s>`."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def batch(self, kinds: dict[str, int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`kinds[name]` rows of each kind of task, `length` tokens each."""
        rows = [getattr(self, name)(length) for name, count in kinds.items() for _ in range(count)]
        return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])

    def key(self) -> str:
        return str(self.rng.randint(10000, 99999))

    def passage(self, count: int) -> list[int]:
        """`count` tokens of the training text from a random offset."""
        start = self.rng.randrange(len(self.stream) - count)
        return self.stream[start : start + count]

    def prose(self, length: int) -> tuple[list[int], list[int]]:
        """Plain text."""
        return [self.tokenizer.bos_token_id, *self.passage(length - 1)], [TEXT] * length

    def copy(self, length: int) -> tuple[list[int], list[int]]:
        """Random tokens, then the same again: only copying can predict the second half."""
        half = (length - 1) // 2
        first = [self.rng.choice(self.plain) for _ in range(half)]
        ids = [self.tokenizer.bos_token_id, *first, *first]
        weights = [IGNORE] * (2 + half) + [ANSWER] * (half - 1)
        spare = length - len(ids)
        return ids + self.passage(spare), weights + [IGNORE] * spare

    def tile(self, length: int) -> tuple[list[int], list[int]]:
        """Random tokens again and again, at a random period, so that positions alone do not do."""
        period = self.rng.randint(4, (length - 1) // 2)
        once = [self.rng.choice(self.plain) for _ in range(period)]
        ids = [self.tokenizer.bos_token_id, *(once * (length // period + 1))][:length]
        return ids, [IGNORE] * (period + 2) + [ANSWER] * (length - period - 2)

    def echo(self, length: int) -> tuple[list[int], list[int]]:
        """A span of random tokens inside prose, which comes back at the end of it."""
        count = self.rng.randint(8, max(9, min(40, length // 4)))
        span = [self.rng.choice(self.plain) for _ in range(count)]
        garbage = self.passage(length - 1 - 2 * count)
        cut = self.rng.randrange(len(garbage) + 1)
        ids = [self.tokenizer.bos_token_id, *garbage[:cut], *span, *garbage[cut:], *span]
        weights = [TEXT] * (1 + cut) + [IGNORE] * (count + 1) + [TEXT] * (len(garbage) - cut)
        weights = weights[: length - count] + [IGNORE] + [ANSWER] * (count - 1)
        return ids, weights

    def episodes(self, length: int) -> tuple[list[int], list[int]]:
        """Short passkey tasks one after another, each with its own key: many answers in few tokens."""
        ids, weights = [self.tokenizer.bos_token_id], [TEXT]
        while len(ids) < length:
            key = self.key()
            for text, free in ((NEEDLE, 1), (QUESTION + " {key}.", 0)):
                filler = self.passage(self.rng.randint(1, 24))
                piece, marks = self._mark(text.format(key=key), free)
                ids += filler + piece
                weights += [TEXT] * len(filler) + marks
        return ids[:length], weights[:length]

    def noise_key(self, length: int) -> tuple[list[int], list[int]]:
        """The passkey task over noise."""
        return self._hide([NEEDLE], [QUESTION + " {key}."], [""], length, noise=True)

    def prose_key(self, length: int) -> tuple[list[int], list[int]]:
        """The passkey task over prose."""
        return self._hide([NEEDLE], [QUESTION + " {key}."], [""], length, noise=False)

    def noise_keys(self, length: int) -> tuple[list[int], list[int]]:
        """Several named keys over noise, each asked for."""
        return self._named(length, noise=True)

    def prose_keys(self, length: int) -> tuple[list[int], list[int]]:
        """Several named keys over prose, each asked for."""
        return self._named(length, noise=False)

    def pairs(self, length: int) -> tuple[list[int], list[int]]:
        """Small groups of lines `word: digits`, each followed by the same lines in another order."""
        ids, weights = [self.tokenizer.bos_token_id], [TEXT]
        while len(ids) < length:
            lines = [
                (self.encode(f"\n{name}: "), self.encode(self.key()))
                for name in self.rng.sample(self.words, self.rng.randint(2, 5))
            ]
            for mark in (IGNORE, ANSWER):
                self.rng.shuffle(lines)
                for name, key in lines:
                    ids += name + key
                    weights += [IGNORE] * len(name) + [mark] * len(key)
        return ids[:length], weights[:length]

    def _named(self, length: int, noise: bool) -> tuple[list[int], list[int]]:
        names = self.rng.sample(self.words, self.rng.randint(2, max(2, length // 110)))
        asked = self.rng.sample(names, len(names))
        return self._hide([NAMED] * len(names), [NAMED_QUESTION] * len(names), names, length, noise, asked)

    def _hide(
        self,
        needles: list[str],
        questions: list[str],
        names: list[str],
        length: int,
        noise: bool,
        asked: list[str] | None = None,
    ) -> tuple[list[int], list[int]]:
        """Needles at random depths of a filler, then the questions about `asked`, in that order."""
        keys = {name: self.key() for name in names}
        hidden = [self._mark(n.format(name=x, key=keys[x]), 1) for n, x in zip(needles, names, strict=True)]
        asked = asked or names
        tail = [self._mark(q.format(name=x, key=keys[x]), 0) for q, x in zip(questions, asked, strict=True)]
        head = [self.tokenizer.bos_token_id, *self.task]
        room = length - len(head) - sum(len(ids) for ids, _ in hidden + tail)
        if room < 0:
            raise ValueError(f"{length} tokens are too few for {len(names)} keys")
        garbage = (self.noise * (room // len(self.noise) + 1))[:room] if noise else self.passage(room)
        cuts = sorted(self.rng.randint(0, room) for _ in hidden)
        ids, weights, last = list(head), [TEXT] * len(head), 0
        for cut, (needle, marks) in zip(cuts, hidden, strict=True):
            ids += garbage[last:cut] + needle
            weights += [TEXT] * (cut - last) + marks
            last = cut
        ids += garbage[last:]
        weights += [TEXT] * (room - last)
        for question, marks in tail:
            ids += question
            weights += marks
        return ids, weights

    def _mark(self, text: str, free: int) -> tuple[list[int], list[int]]:
        """Tokens of `text`; runs of digits after the first `free` ones are answers, those are ignored."""
        ids: list[int] = []
        weights: list[int] = []
        for index, piece in enumerate(re.split(r"(\d+)", text)):
            piece_ids = self.encode(piece) if piece else []
            ids += piece_ids
            kind = TEXT if index % 2 == 0 else (IGNORE if index // 2 < free else ANSWER)
            weights += [kind] * len(piece_ids)
        if weights:
            weights[0] = IGNORE  # that a needle or a question comes here cannot be foreseen
        return ids, weights
