"""Training sequences: prose, copying, and tasks whose answers stand in their own text.

A sequence is token ids with a mark for each token as a target: `TEXT` if the language-model loss counts (prose),
`ANSWER` if the token can be told from what came before (an answer, a copy), and `IGNORE` for the rest: random keys
and values, and the wording of tasks. A row holds one document after another, each a task with several questions, so
that a large part of a row's tokens are answers. Keys, values, depths, words and passages are drawn afresh for every
row.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerFast

from documents import Draft, Material
from facts import RELATIONS
from longspan_eval.filler import NOISE
from longspan_eval.tasks import common_words as evaluated_words
from longspan_eval.tasks import facts as evaluated_facts
from longspan_eval.tasks import key_value, ruler_tracing, ruler_words
from longspan_eval.tasks.passkey import NEEDLE, QUESTION, TASK
from retrieval import RULER, RULER_UUID, WORDINGS, fact_questions, json_pairs, magic, passkeys
from tracing import common_words, variables

ANSWER = Draft.ANSWER
IGNORE = Draft.IGNORE
TEXT = Draft.TEXT
TIMES = 150
TASKS = {
    "passkeys": passkeys,
    "magic": magic,
    "facts": fact_questions,
    "json": json_pairs,
    "variables": variables,
    "common": common_words,
}


@dataclass
class Sampler:
    """Draws rows from the training documents.

    Attributes:
        tokenizer: the model's.
        documents: the training text, one string a document.
        seed: decides every row.
    """

    tokenizer: PreTrainedTokenizerFast
    documents: list[str]
    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.material = Material(self.tokenizer, self.documents, self.rng)

    def batch(
        self, kinds: dict[str, float], rows: int, length: int, least: int
    ) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """The kind of each row; ids and marks, both int64 of shape (rows, length).

        Args:
            kinds: how often each kind of row is drawn, as weights: `prose`, `copy`, `recall`, or one of `TASKS`.
            rows, length: the shape.
            least: the fewest tokens of a document; the most is the rest of its row.
        """
        names, weights = list(kinds), list(kinds.values())
        drawn = self.rng.choices(names, weights, k=rows)
        made = [self.row(name, length, least) for name in drawn]
        return drawn, torch.tensor([ids for ids, _ in made]), torch.tensor([marks for _, marks in made])

    def row(self, kind: str, length: int, least: int) -> tuple[list[int], list[int]]:
        """One row of a kind."""
        draft = Draft(self.material)
        draft.tokens([self.tokenizer.bos_token_id], IGNORE)
        if kind == "prose":
            draft.tokens(self.material.passage(length - 1), TEXT)
        elif kind in ("copy", "recall"):
            getattr(self, kind)(draft, length)
        else:
            while length - len(draft) >= least:
                room, before = length - len(draft), len(draft)
                TASKS[kind](draft, self.rng, self.rng.randint(least, room) if room > 2 * least else room)
                if len(draft) == before:  # not even a small document fits
                    break
            draft.tokens(self.material.passage(max(0, length - len(draft))), TEXT)
        return draft.ids[:length], draft.marks[:length]

    def copy(self, draft: Draft, length: int) -> None:
        """Random tokens again and again, at a random period."""
        while len(draft) < length:
            once = self.material.random_tokens(
                self.rng.randint(3, max(4, min(40, length // 5))), self.rng.random() < 0.7
            )
            draft.tokens(once, IGNORE)
            for _ in range(self.rng.randint(2, 6)):
                draft.tokens(once[:1], IGNORE)
                draft.tokens(once[1:], ANSWER)

    def recall(self, draft: Draft, length: int) -> None:
        """Pairs of random tokens, then the same pairs in another order, several times over."""
        while len(draft) < length:
            keys, values = self.rng.choice(((1, 1), (1, 2), (2, 1), (2, 3), (3, 2)))
            size, signs = keys + values + 1, self.rng.random() < 0.7
            count = self.rng.randint(2, max(3, min(16, length // size // 3)))
            between = self.material.random_tokens(1, signs)
            pairs = [
                (self.material.random_tokens(keys, signs), self.material.random_tokens(values, signs))
                for _ in range(count)
            ]
            for turn in range(self.rng.randint(2, 5)):
                self.rng.shuffle(pairs)
                for key, value in pairs:
                    draft.tokens(key + between, IGNORE)
                    draft.tokens(value, ANSWER if turn else IGNORE)


def wordings() -> list[str]:
    """The fixed words of the tasks, so often that the tokenizer learns them as words."""
    texts = [
        wording.task + wording.tasks + wording.statement + wording.question + wording.plural
        for wording in (*WORDINGS, RULER, RULER_UUID)
    ]
    texts += [TASK + NEEDLE + QUESTION, NOISE, key_value.TASK + key_value.QUESTION]
    texts += [ruler_tracing.QUESTION, evaluated_words.QUESTION]
    texts += [ruler_tracing.TASK, "\nVAR = VAR = VAR =", ruler_words.CWE_TASK, ' "": "", "": "", "": "']
    for relation, evaluated in zip(RELATIONS, evaluated_facts.RELATIONS, strict=True):
        texts += [*relation.statements, *relation.questions, evaluated.answer]
    return [re.sub(r"\{\w*\}", "", text) for text in texts] * TIMES
