"""Prompts that measure two things in one pass: a passkey hidden in prose, and how well the prose is predicted.

Prompts of one seed end in the same prose whatever their length: a longer one only begins earlier. So the passkey and
the scored tokens of two lengths are the same, and what differs between them is how much came before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from longspan.evaluation.passkey import NEEDLE, QUESTION, TASK

ANSWER_ROOM = 8  # tokens kept free for the answer, so that a prompt of one window and its answer stay inside it


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        input_ids: its tokens.
        answer: the digits hidden in it.
        depth: where they were asked to lie among the prose, 0 its start and 1 its end.
        scored: the indices in ``input_ids`` of the prose tokens whose loss is taken.
        seed: what it was drawn from.
    """

    input_ids: list[int]
    answer: str
    depth: float
    scored: tuple[int, ...]
    seed: int


class Haystack:
    """Prose to hide passkeys in, tokenized once. A prompt longer than the prose reads it round again.

    Args:
        tokenizer: a transformers tokenizer.
        text: prose, paragraphs one to a line.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer = tokenizer
        self._prose = self._encode(text)
        if not self._prose:
            raise ValueError("the text to hide a passkey in is empty")
        ends = {token: tokenizer.decode([token]).rstrip(" ") for token in set(self._prose)}
        self._sentence_ends = {token for token, piece in ends.items() if piece.endswith((".", "\n"))}
        paragraphs = {token for token, piece in ends.items() if piece.endswith("\n")}
        self._paragraph_ends = [n + 1 for n, token in enumerate(self._prose) if token in paragraphs] or [0]
        bos = tokenizer.bos_token_id
        starts_with_bos = bos is not None and list(tokenizer("a")["input_ids"])[:1] == [bos]
        self._head = [*([bos] if starts_with_bos else []), *self._encode(TASK)]
        self._question = self._encode(QUESTION)

    def prompt(self, *, length: int, depth: float, seed: int, targets: int = 256) -> Prompt:
        """A prompt that with its answer takes exactly ``length`` tokens.

        Args:
            length: tokens, ``ANSWER_ROOM`` of them left for the answer.
            depth: where the passkey goes, 0 to 1; it is moved to the nearest end of a sentence.
            seed: decides the passkey and the prose.
            targets: how many of the last tokens of prose are scored.
        """
        if not 0.0 <= depth <= 1.0:
            raise ValueError(f"depth must lie in 0..1, not {depth}")
        rng = random.Random(seed)
        answer = str(rng.randint(10000, 99999))
        end = rng.choice(self._paragraph_ends)
        needle = self._encode(NEEDLE.format(key=answer))
        room = length - ANSWER_ROOM - len(self._head) - len(needle) - len(self._question)
        if room < targets:
            least = length - room + targets
            raise ValueError(f"{length} tokens are too few: the task and {targets} scored tokens take {least}")
        prose = [self._prose[n % len(self._prose)] for n in range(end - room, end)]
        cut = self._cut(prose, round(depth * room))
        ids = [*self._head, *prose[:cut], *needle, *prose[cut:], *self._question]
        # A token right after the passkey follows on it, not on the prose, so its loss says nothing about reading prose.
        scored = tuple(
            len(self._head) + n + (len(needle) if n > cut else 0) for n in range(room - targets, room) if n != cut
        )
        return Prompt(ids, answer, depth, scored, seed)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _cut(self, prose: list[int], target: int) -> int:
        """The end of a sentence nearest to ``target`` (within 64 tokens), else ``target``."""
        for index in sorted(
            range(max(target - 64, 0), min(target + 65, len(prose) + 1)), key=lambda n: abs(n - target)
        ):
            if index in (0, len(prose)) or prose[index - 1] in self._sentence_ends:
                return index
        return target
