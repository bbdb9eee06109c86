"""The evaluation's prompts that its own tasks do not have, or not at a size that fits a window of 512 tokens.

Each is a `Task` as those of `longspan eval` are, with words and wordings that training never sees. A longer prompt has
more filler, so that they can be asked at any length.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from facts import heldout_facts
from longspan_eval.metrics import several
from longspan_eval.task import Build, Example, Record, Task
from longspan_eval.tasks import ruler_tracing, ruler_words
from longspan_eval.tasks.fragments import check_asked, inside, listed, piece
from longspan_eval.tasks.haystack import NOISE_LINE, Hay, Needle, hide, noise, noise_tail, prose
from longspan_eval.tasks.scores import contained, word_in_answer
from longspan_eval.tasks.words import ADJECTIVES, NOUNS
from retrieval import HELDOUT_WORDING, JSON_QUESTION, JSON_TASK
from tracing import CHAIN_QUESTION, COMMON_QUESTION, assignments, chain

HERE = "made for the bundled model"
RULER = "Hsieh et al., 2024, arXiv 2404.06654"


@dataclass(frozen=True)
class Facts:
    """Facts about people in prose, one of them asked for in plain words.

    Attributes:
        name: the task's.
        facts: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str
    facts: int = 12
    new_tokens: int = 24

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        passage = prose(tokenizer).passage(rng)
        asked = rng.random() if depth is None else depth
        wanted, *others = heldout_facts(rng, self.facts)
        needles = [Needle(f" {wanted.statement}", asked), *(Needle(f" {f.statement}", rng.random()) for f in others)]
        after = f"\n{wanted.question}\nAnswer:"
        ids, placed = hide(
            tokenizer, self.name, passage, needles, before="", after=after, length=length, new_tokens=self.new_tokens
        )
        return Example(ids, (wanted.value,), seed, asked, placed[0])


@dataclass(frozen=True)
class Magic:
    """Named numbers in prose, one of them asked for, in a wording that training does not have.

    Attributes:
        name: the task's.
        keys: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str
    keys: int = 4
    new_tokens: int = 16

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        passage = prose(tokenizer).passage(rng)
        asked = rng.random() if depth is None else depth
        adjectives, nouns = rng.sample(ADJECTIVES, self.keys), rng.sample(NOUNS, self.keys)
        keys = [f"{adjective}-{noun}" for adjective, noun in zip(adjectives, nouns, strict=True)]
        values = [str(rng.randint(1_000_000, 9_999_999)) for _ in keys]
        places = [asked, *(rng.random() for _ in keys[1:])]
        needles = [
            Needle(f" {HELDOUT_WORDING.statement.format(key=key, value=value)}", place)
            for key, value, place in zip(keys, values, places, strict=True)
        ]
        after = HELDOUT_WORDING.question.format(key=keys[0])
        ids, placed = hide(
            tokenizer, self.name, passage, needles, before="", after=after, length=length, new_tokens=self.new_tokens
        )
        return Example(ids, (values[0],), seed, asked, placed[0])


@dataclass(frozen=True)
class KeyValues:
    """A JSON object with words as keys and numbers as values, and one of its keys.

    Attributes:
        name: the task's.
        pairs: how many.
        new_tokens: the most tokens of an answer.
    """

    name: str
    pairs: int = 16
    new_tokens: int = 16

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=True)
        rng = random.Random(seed)
        asked = rng.random() if depth is None else depth
        keys = rng.sample(NOUNS, self.pairs)
        values = [str(value) for value in rng.sample(range(10_000, 100_000), self.pairs)]
        wanted = min(self.pairs - 1, int(asked * self.pairs))
        items = [f'"{key}": "{value}"' for key, value in zip(keys, values, strict=True)]
        units = listed(tokenizer, items, ("{", "}"))
        # What the object leaves over is noise, before the instruction.
        task, size = piece(tokenizer, JSON_TASK.rstrip("\n")), sum(map(len, units)) + 1

        def grow(room: int) -> Hay:
            newline = piece(tokenizer, "\n")
            return Hay.of([noise_tail(tokenizer, max(0, room - size - len(task))), task, newline, *units])

        ids, _ = hide(
            tokenizer,
            self.name,
            grow,
            [],
            before="",
            after=JSON_QUESTION.format(key=keys[wanted]),
            length=length,
            new_tokens=self.new_tokens,
        )
        return Example(ids, (values[wanted],), seed, asked, None)


def build_chain(
    hops: int,
    chains: int,
    name: str,
    new_tokens: int,
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
) -> Example:
    """RULER's variable tracking with any number of hops and chains; one chain is asked for."""
    check_asked(name, depth, record, at_depths=False)
    rng = random.Random(seed)
    shown, shown_value = chain(rng, hops, 3)
    drawn = [chain(rng, hops, 5) for _ in range(chains)]
    example = "".join(NOISE_LINE + line for line in assignments(shown, shown_value))
    asked = partial(CHAIN_QUESTION.format, count=hops + 1)
    before = f"{ruler_tracing.TASK}{example}{asked(value=shown_value)} {' '.join(shown)}\n\n{ruler_tracing.TASK}"
    needles = [
        Needle(line, place)
        for one in drawn
        for line, place in zip(assignments(*one), sorted(rng.random() for _ in one[0]), strict=True)
    ]
    ids, _ = hide(
        tokenizer,
        name,
        partial(noise(tokenizer).before, 0),
        needles,
        before=before,
        after=asked(value=drawn[0][1]),
        length=length,
        new_tokens=new_tokens,
    )
    return Example(ids, tuple(drawn[0][0]), seed, None, None)


@dataclass(frozen=True)
class CommonWords:
    """RULER's common words without the worked example.

    Attributes:
        name: the task's.
        common, times: how many words stand in the list how often.
        others: how many stand in it once.
        new_tokens: the most tokens of an answer.
    """

    name: str
    common: int = 5
    times: int = 6
    others: int = 5
    new_tokens: int = 40

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=False)
        rng = random.Random(seed)
        words = rng.sample([*ADJECTIVES, *NOUNS], self.common + self.others)
        entries = words[: self.common] * self.times + words[self.common :]
        rng.shuffle(entries)
        texts = [f"{' ' if n > 1 else chr(10)}{n}. {word}" for n, word in enumerate(entries, 1)]
        units = [piece(tokenizer, "\n" + ruler_words.CWE_TASK.strip()), *inside(tokenizer, texts)]
        size = sum(map(len, units))

        def grow(room: int) -> Hay:
            return Hay.of([noise_tail(tokenizer, max(0, room - size)), *units])

        after = COMMON_QUESTION.format(count=self.common)
        ids, _ = hide(tokenizer, self.name, grow, [], before="", after=after, length=length, new_tokens=self.new_tokens)
        return Example(ids, tuple(words[: self.common]), seed, None, None)


def first_line(prediction: str, references: Any) -> float:
    """1.0 where the first line of the answer that is not empty has the reference as a word."""
    said = prediction.strip().partition("\n")[0].rstrip(".")
    return float(any(f" {said} ".endswith(f" {reference} ") for reference in several(references)))


def _task(name: str, paper: str, summary: str, new_tokens: int, build: Build, score: Any, at_depths: bool) -> Task:
    return Task(
        name=name,
        version=1,
        paper=paper,
        summary=summary,
        new_tokens=new_tokens,
        build=build,
        score=score,
        at_depths=at_depths,
    )


WINDOW_TASKS = (
    _task("facts", HERE, "one of 12 facts in prose, asked in plain words", 24, Facts("facts"), first_line, True),
    _task(
        "magic-heldout",
        HERE,
        "one of 4 numbers in prose, wording held out",
        16,
        Magic("magic-heldout"),
        contained,
        True,
    ),
    _task("key-value", HERE, "the value of one of 16 keys", 16, KeyValues("key-value"), word_in_answer, True),
    _task(
        "vt-2-hops",
        RULER,
        "3 variables of a value, one chain",
        24,
        partial(build_chain, 2, 1, "vt-2-hops", 24),
        contained,
        False,
    ),
    _task(
        "vt-2-hops-2-chains",
        RULER,
        "3 variables of a value, one of two chains",
        24,
        partial(build_chain, 2, 2, "vt-2-hops-2-chains", 24),
        contained,
        False,
    ),
    _task("common-words", RULER, "5 words of 10, 6 times each", 40, CommonWords("common-words"), contained, False),
)
