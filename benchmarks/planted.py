"""The texts that real models read on the board: novels, RULER's essays and noise, with things planted in them.

``facts``: a novel and facts about people who are not in it. ``keys``: RULER's essays, or noise, and RULER's magic
numbers of several keys. ``pass key``: the same texts and one pass key. What is planted lies at equal distances; a
single one where the number of the text puts it.

Text ``n`` of six novels is of novel ``n mod 6``, of its part ``n // 6``, whatever its length: a longer text of one
number only goes on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.errors import LongspanError
from longspan.text.encode import beginning
from longspan_eval.planted import TARGETS, Planted, PlantedItem, draw_facts, evenly, plant, sentences
from longspan_eval.tasks import passkey
from longspan_eval.tasks.fragments import opening, piece
from longspan_eval.tasks.haystack import NOISE_LINE
from longspan_eval.tasks.ruler_niah import NEEDLE, QUESTION, TASK
from longspan_eval.tasks.words import ADJECTIVES, NOUNS

Kind = Literal["facts", "keys in noise", "keys in essays", "pass key in noise", "pass key in essays"]
KINDS: tuple[Kind, ...] = get_args(Kind)

PART = 33_000  # tokens from the beginning of one part of a text to that of the next
COUNT = 10  # facts or keys of a text
ESSAYS = "PaulGrahamEssays.json"  # as RULER's generator writes it
_NUMBER = {"some": "Some", "are": "is", "are_all": "is", "values": "number"}


class Texts:
    """The novels of a folder in the order of their names, and RULER's essays if they lie there or beside it.

    Raises:
        LongspanError: there is no novel.

    Attributes:
        digest: empty; the board's keys say what is read by its name.
    """

    digest = ""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self._files = sorted(folder.glob("*.txt"))
        if not self._files:
            raise LongspanError(f"{folder} holds no text files; give a folder of novels, each a .txt file")
        self._essays = next((at for at in (folder / ESSAYS, folder.parent / ESSAYS) if at.is_file()), None)
        self._tokenizer = tokenizer

    def planted(self, kind: str, number: int, length: int) -> Planted:
        """Text ``number`` of a kind, of ``length`` tokens together with a question and its answer.

        Raises:
            ValueError: the text ends before that, or there are no essays.
        """
        tokenizer, rng = self._tokenizer, random.Random(number)
        before, asked, units, start, source = self._parts(kind, number, rng)
        head = opening(tokenizer, before) if before else beginning(tokenizer)
        depths = [rng.random()] if len(asked) == 1 else evenly(len(asked))
        targets = TARGETS if kind == "facts" else 0
        return plant(tokenizer, head, units, start, length, asked, source, depths=depths, targets=targets)

    def _parts(
        self, kind: str, number: int, rng: random.Random
    ) -> tuple[str, tuple[PlantedItem, ...], Sequence[list[int]], int, str]:
        """What comes before the text, what is asked, the text's sentences, at which token it begins, and its name."""
        if kind == "facts":
            part, n = divmod(number, len(self._files))
            file = self._files[n]
            text = file.read_text(encoding="utf-8")
            return "", draw_facts(rng, text, COUNT), sentences(text, self._tokenizer), part * PART, file.stem
        asked = _keys(rng) if kind.startswith("keys") else _pass_key(rng)
        before = (
            TASK.format(**{**_NUMBER, "are": "are", "values": "numbers"}) if kind.startswith("keys") else passkey.TASK
        )
        if kind.endswith("noise"):
            return before.rstrip("\n"), asked, [piece(self._tokenizer, NOISE_LINE)] * 20_000, 0, "noise"
        if self._essays is None:
            raise ValueError(f"there is no {ESSAYS} in the folder of texts, nor beside it")
        units = sentences(json.loads(self._essays.read_text(encoding="utf-8"))["text"], self._tokenizer)
        return before.rstrip("\n"), asked, units, number * PART, "essays"


def _keys(rng: random.Random) -> tuple[PlantedItem, ...]:
    """Magic numbers of several keys, each asked for in RULER's words."""
    adjectives, nouns = rng.sample(ADJECTIVES, COUNT), rng.sample(NOUNS, COUNT)
    numbers = rng.sample(range(1_000_000, 10_000_000), COUNT)
    named = [(f"{adjective}-{noun}", str(n)) for adjective, noun, n in zip(adjectives, nouns, numbers, strict=True)]
    return tuple(
        PlantedItem(
            " " + NEEDLE.format(values="numbers", key=key, value=value), QUESTION.format(**_NUMBER, query=key), value
        )
        for key, value in named
    )


def _pass_key(rng: random.Random) -> tuple[PlantedItem, ...]:
    key = str(rng.randint(10_000, 99_999))
    return (PlantedItem(passkey.NEEDLE.format(key=key).rstrip("\n"), passkey.QUESTION, key),)
