"""What every task hands to a model. A task is two pure functions, ``build`` and ``score``, and a ``VERSION``.

``build(tokenizer, *, length, seed, …) → Example`` and ``score(prediction, references) → float`` in 0..1. ``VERSION``
grows when either changes, so that results from before are measured again instead of mixed in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One prompt.

    Attributes:
        input_ids: its tokens.
        references: answers that count as right.
        seed: what it was drawn from.
        depth: where the thing to find was asked to lie, 0 the start of the text and 1 its end.
        placed: where it lies.
        scored: the indices in ``input_ids`` of the tokens whose loss is taken; may be empty.
    """

    input_ids: list[int]
    references: tuple[str, ...]
    seed: int
    depth: float
    placed: float
    scored: tuple[int, ...] = ()

    @property
    def answer(self) -> str:
        """The first reference."""
        return self.references[0]
