"""The common part of tasks that hide sentences in a text: a task says what is hidden, by seed, and nothing else."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from longspan_eval.filler import FillerName
from longspan_eval.task import Example, Record, Score, Task
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.haystack import Needle, hide, text_of


@dataclass(frozen=True)
class Hidden:
    """A prompt's parts that a seed decides at any length.

    Attributes:
        after: what comes after the text.
        references: answers that count as right.
        wanted: the one sentence that is asked for, which goes to the depth asked; empty if there is none.
        others: the needles besides.
        before: what comes before the text.
    """

    after: str
    references: tuple[str, ...]
    wanted: str = ""
    others: Sequence[Needle] = ()
    before: str = ""


class Hiding(ABC):
    """A task's ``build``: sentences in noise or prose. A subclass is a dataclass with a name and a number of tokens.

    Attributes:
        name: the task's.
        new_tokens: the most tokens of an answer.
        text: what the sentences are hidden in.
        at_depths: whether one sentence is asked for, whose depth can be asked.
        back: put needles to the last gap before their depths instead of the nearest one.
    """

    name: str
    new_tokens: int
    text: ClassVar[FillerName]
    at_depths: ClassVar[bool] = False
    back: ClassVar[bool] = False

    @abstractmethod
    def draw(self, rng: random.Random) -> Hidden:
        """Draw a prompt's parts."""

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example:
        check_asked(self.name, depth, record, at_depths=self.at_depths)
        rng = random.Random(seed)
        grow = text_of(tokenizer, self.text, rng)
        asked = rng.random() if depth is None and self.at_depths else depth
        hidden = self.draw(rng)
        ids, placed = hide(
            tokenizer,
            self.name,
            grow,
            [*hidden.others] if asked is None else [Needle(hidden.wanted, asked), *hidden.others],
            before=hidden.before,
            after=hidden.after,
            length=length,
            new_tokens=self.new_tokens,
            back=self.back,
        )
        return Example(ids, hidden.references, seed, asked, None if asked is None else placed[0])

    def task(
        self, *, version: int, paper: str, summary: str, score: Score, until: Callable[[str], bool] | None = None
    ) -> Task:
        """The task that this builds the prompts of."""
        return Task(
            name=self.name,
            version=version,
            paper=paper,
            summary=summary,
            new_tokens=self.new_tokens,
            build=self,
            score=score,
            at_depths=self.at_depths,
            until=until,
        )
