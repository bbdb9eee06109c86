"""RULER's variable tracking (Hsieh et al., 2024): which variables have a value, by way of a chain of assignments.

The wording is RULER's (Apache-2.0). As there, a short worked example comes first, of variables with three letters;
those asked for have five. An assignment is a line of its own among the lines of noise. RULER's task has four hops; two
hops, with one chain or two, fit a window of 512 tokens.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from functools import partial

from longspan_eval.task import Task
from longspan_eval.tasks.haystack import NOISE_LINE, Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import contained

TASK = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
QUESTION = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above. Answer: According to the "
    "chain(s) of variable assignment in the text above, {count} variables are assigned the value {value}, they are:"
)


@dataclass(frozen=True)
class VariableTracking(Hiding):
    """Chains in noise, the assignments of each in order at random places; the first chain's value is asked for.

    Attributes:
        hops: assignments from variable to variable in a chain.
        chains: how many, besides that of the worked example.
    """

    name: str
    hops: int = 4
    chains: int = 1
    new_tokens: int = 30

    text = "noise"

    def draw(self, rng: random.Random) -> Hidden:
        shown, shown_value = chain(rng, self.hops, 3)
        drawn: list[tuple[list[str], str]] = []
        while len(drawn) < self.chains:
            names, value = chain(rng, self.hops, 5)
            if value not in {shown_value, *(other for _, other in drawn)}:
                drawn.append((names, value))
        asked = partial(QUESTION.format, count=self.hops + 1)
        example = "".join(NOISE_LINE + line for line in assignments(shown, shown_value))
        needles = [
            Needle(line, place)
            for one in drawn
            for line, place in zip(assignments(*one), sorted(rng.random() for _ in one[0]), strict=True)
        ]
        return Hidden(
            asked(value=drawn[0][1]),
            tuple(drawn[0][0]),
            others=needles,
            before=f"{TASK}{example}{asked(value=shown_value)} {' '.join(shown)}\n\n{TASK}",
        )


def chain(rng: random.Random, hops: int, letters: int) -> tuple[list[str], str]:
    """The names of ``hops + 1`` variables, all different, and the value that the first is given and the others take."""
    names: dict[str, None] = {}
    while len(names) <= hops:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    return list(names), str(rng.randint(10000, 99999))


def assignments(names: list[str], value: str) -> list[str]:
    """The lines of a chain."""
    links = zip(names[1:], names, strict=False)
    return [f"\nVAR {names[0]} = {value}", *(f"\nVAR {name} = VAR {other}" for name, other in links)]


def _task(tracking: VariableTracking, summary: str) -> Task:
    return tracking.task(version=1, paper="Hsieh et al., 2024, arXiv 2404.06654", summary=summary, score=contained)


RULER_TRACING = (
    _task(VariableTracking("ruler-vt"), "the 5 variables of one value, by way of a chain of assignments in noise"),
)
SHORT_TRACING = (
    _task(VariableTracking("vt-2-hops", 2, 1, 24), "the 3 variables of one value, by way of a chain of two hops"),
    _task(VariableTracking("vt-2-hops-2-chains", 2, 2, 24), "the 3 variables of one of two values, each with a chain"),
)
