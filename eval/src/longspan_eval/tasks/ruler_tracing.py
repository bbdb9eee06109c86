"""RULER's variable tracking (Hsieh et al., 2024): which variables have a value, by way of a chain of assignments.

The wording is RULER's (Apache-2.0). As there, a short worked example comes first, of variables with three letters;
those asked for have five. An assignment is a line of its own among the lines of noise.
"""

from __future__ import annotations

import random
import string
from functools import partial
from typing import Any

from longspan_eval.task import Example, Record, Task
from longspan_eval.tasks.fragments import check_asked
from longspan_eval.tasks.haystack import NOISE_LINE, Needle, hide, noise
from longspan_eval.tasks.scores import contained

NAME, NEW_TOKENS, HOPS = "ruler-vt", 30, 4
TASK = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above. Answer: According to the "
    "chain(s) of variable assignment in the text above, {count} variables are assigned the value {value}, they are:"
)


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """One chain of ``HOPS`` hops in noise, its assignments in order at random places."""
    check_asked(NAME, depth, record, at_depths=False)
    rng = random.Random(seed)
    (shown, shown_value), (names, value) = _chain(rng, 3), _chain(rng, 5)
    while value == shown_value:
        names, value = _chain(rng, 5)
    example = "".join(NOISE_LINE + line for line in _lines(shown, shown_value))
    before = f"{TASK}{example}{_question(shown_value)} {' '.join(shown)}\n\n{TASK}"
    places = sorted(rng.random() for _ in names)
    needles = [Needle(line, place) for line, place in zip(_lines(names, value), places, strict=True)]
    ids, _ = hide(
        tokenizer,
        NAME,
        partial(noise(tokenizer).before, 0),
        needles,
        before=before,
        after=_question(value),
        length=length,
        new_tokens=NEW_TOKENS,
    )
    return Example(ids, tuple(names), seed, None, None)


def _chain(rng: random.Random, letters: int) -> tuple[list[str], str]:
    """The names of variables, all different, and the value that the first is given and the others take over."""
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    return list(names), str(rng.randint(10000, 99999))


def _lines(names: list[str], value: str) -> list[str]:
    links = zip(names[1:], names, strict=False)
    return [f"\nVAR {names[0]} = {value}", *(f"\nVAR {name} = VAR {other}" for name, other in links)]


def _question(value: str) -> str:
    return QUESTION.format(value=value, count=HOPS + 1)


RULER_TRACING = (
    Task(
        name=NAME,
        version=1,
        paper="Hsieh et al., 2024, arXiv 2404.06654",
        summary=f"the {HOPS + 1} variables of one value, by way of a chain of assignments in noise",
        new_tokens=NEW_TOKENS,
        build=build,
        score=contained,
    ),
)
