"""Tasks and the prompts they build. A task is two pure functions, ``build`` and ``score``, and what a runner must know.

``build(tokenizer, *, length, seed, …) → Example`` and ``score(prediction, references) → float`` in 0..1. ``version``
grows when either changes, so that results from before are measured again instead of mixed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from longspan_eval.datafile import DataFile
from longspan_eval.datafile import Record as Record
from longspan_eval.metrics import Score as Score

Shown = Literal["score", "perplexity"]


@dataclass(frozen=True)
class Example:
    """One prompt.

    Attributes:
        input_ids: its tokens.
        references: answers that count as right.
        seed: what it was drawn from.
        depth: where the thing to find was asked to lie, 0 the start of the text and 1 its end; None if a task has
            no such place.
        placed: where it lies; None if there are several such things, or none.
        scored: the indices in ``input_ids`` of the tokens whose loss is taken; may be empty.
    """

    input_ids: list[int]
    references: tuple[str, ...]
    seed: int
    depth: float | None
    placed: float | None
    scored: tuple[int, ...] = ()

    @property
    def answer(self) -> str:
        """The first reference."""
        return self.references[0]


class Build(Protocol):
    """Makes a prompt; the same one for the same arguments, whenever and wherever it is called."""

    def __call__(
        self, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
    ) -> Example: ...


@dataclass(frozen=True)
class Task:
    """A task: two pure functions and what a runner has to know of it.

    Attributes:
        version: grows when ``build`` or ``score`` changes.
        paper: who states it, such as ``"Hsieh et al., 2024, arXiv 2404.06654"``.
        new_tokens: the most tokens of an answer; 0 if none is asked for.
        build: a prompt of exactly ``length - new_tokens`` tokens, or of at most that if it is made of a ``record``.
            Raises ValueError, naming the least length, if ``length`` is too short.
        score: how right a prediction is, 0 to 1.
        at_depths: whether a depth can be asked for.
        until: text after which generation may stop early; None: ``new_tokens`` or an end-of-text token.
        data: the local file it reads; None: it is synthetic, or its prompts are ``Evaluation.windows``.
        filler: what things are hidden in, if a table tells several apart; else empty.
        targets: how many tokens at the end of a text have their loss taken, if a table asks for it; else 0.
        measure: what a table shows of it: the mean ``"score"``, or the ``"perplexity"`` of its prompts' scored tokens.
    """

    name: str
    version: int
    paper: str
    summary: str
    new_tokens: int
    build: Build
    score: Score
    at_depths: bool = False
    until: Callable[[str], bool] | None = None
    data: DataFile | None = None
    measure: Shown = "score"
    filler: str = ""
    targets: int = 0

    @property
    def variant(self) -> dict[str, Any]:
        """Differences from other tasks of its name, as JSON; empty for a task that is its name's only one."""
        return {name: value for name, value in (("filler", self.filler), ("targets", self.targets)) if value}
