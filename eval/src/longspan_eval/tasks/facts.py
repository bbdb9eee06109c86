"""Facts about people in prose, one of them asked for in plain words.

A fact gives a person one thing: "These days Ada lives in Lisbon with the family." The question is "Which town does Ada
live in?", and the answer is a sentence that says what was asked for: "Ada lives in Lisbon." No name and no value
belongs to two facts of a prompt, so that the value tells which fact was found.

The bundled model is trained on such facts in other names, values and wordings (``training/facts.py``). Of those here
its training text has "Magnus", "Warsaw" and "carriage", in prose.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks.haystack import Needle
from longspan_eval.tasks.hiding import Hidden, Hiding
from longspan_eval.tasks.scores import first_line_ends, line_complete
from longspan_eval.tasks.words import split

COUNT = 12
FRAME = "Now a question: {question}"


@dataclass(frozen=True)
class Relation:
    """A kind of fact about people.

    Attributes:
        statement: the sentence that says it, with ``{name}`` and ``{value}``.
        question: with ``{name}``.
        answer: the beginning of the answer, with ``{name}``; the value and a full stop follow.
        values: what it may be; empty for numbers of three or four digits.
    """

    statement: str
    question: str
    answer: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A fact in words: what states it, what asks for it, how the answer begins, and the value that ends it."""

    statement: str
    question: str
    answer: str
    value: str
    name: str


RELATIONS = (
    Relation(
        "These days {name} lives in {value} with the family.",
        "Which town does {name} live in?",
        "{name} lives in",
        split("""Lisbon Prague Glasgow Bologna Utrecht Helsinki Marseille Valencia Hamburg Dresden Warsaw Tallinn
        Chicago Nairobi Manila Santiago Jakarta Melbourne Montreal Porto"""),
    ),
    Relation(
        "For many years now {name} works as a {value} in town.",
        "As what does {name} work?",
        "{name} works as a",
        split("""gardener carpenter surgeon librarian butcher fisherman violinist sculptor chemist barber photographer
        weaver potter translator"""),
    ),
    Relation(
        "In a small garden {name} keeps a {value} as a friend.",
        "Which animal does {name} keep?",
        "{name} keeps a",
        split("""hamster lizard donkey falcon peacock ferret canary tortoise llama spaniel raven hedgehog"""),
    ),
    Relation(
        "Every evening {name} plays the {value} for an hour.",
        "What is it that {name} plays?",
        "{name} plays the",
        split("""violin cello clarinet accordion oboe mandolin trombone saxophone bassoon ukulele"""),
    ),
    Relation(
        "When there is time {name} likes to eat {value} at noon.",
        "What is it that {name} likes to eat?",
        "{name} likes to eat",
        split("""pancakes cherries mushrooms dumplings olives lentils apricots noodles salmon waffles spinach figs"""),
    ),
    Relation(
        "As far as we know the number of {name} is {value} this year.",
        "Which is the number of {name}?",
        "The number of {name} is",
        (),
    ),
    Relation(
        "Since childhood the favourite colour of {name} is {value} of all.",
        "Which is the favourite colour of {name}?",
        "The favourite colour of {name} is",
        split("""crimson turquoise scarlet magenta indigo maroon beige teal lavender emerald"""),
    ),
    Relation(
        "Whatever the weather {name} travels by {value} to the sea.",
        "In which way does {name} travel?",
        "{name} travels by",
        split("""tram bicycle ferry canoe scooter balloon carriage submarine"""),
    ),
)
PEOPLE = split("""
Ada Boris Cecilia Dorian Edith Florian Greta Harold Ingrid Jasper Kirsten Lionel Miriam Norbert Ophelia Percival
Quentin Rosalind Sebastian Tabitha Ulrich Valerie Wilfred Xenia Yvonne Zachary Beatrice Clement Daphne Ernest
Freya Gideon Harriet Isidore Josephine Konrad Lavinia Magnus Nadine Octavia
""")


def draw(rng: random.Random, count: int) -> list[Fact]:
    """Facts about ``count`` people; no name and no value twice."""
    facts: list[Fact] = []
    values: set[str] = set()
    for name in rng.sample(PEOPLE, count):
        while True:
            relation = rng.choice(RELATIONS)
            value = rng.choice(relation.values) if relation.values else number(rng)
            if value not in values:
                break
        values.add(value)
        facts.append(
            Fact(
                relation.statement.format(name=name, value=value),
                FRAME.format(question=relation.question.format(name=name)),
                relation.answer.format(name=name),
                value,
                name,
            )
        )
    return facts


def number(rng: random.Random) -> str:
    """Three or four digits."""
    return str(rng.randint(100, 9999))


@dataclass(frozen=True)
class HiddenFact(Hiding):
    """Twelve facts about as many people, all but the one asked for anywhere."""

    name: str = "facts"
    new_tokens: int = 24

    text = "prose"
    at_depths = True

    def draw(self, rng: random.Random) -> Hidden:
        wanted, *others = draw(rng, COUNT)
        return Hidden(
            f"\n{wanted.question}\nAnswer:",
            (wanted.value,),
            wanted=f" {wanted.statement}",
            others=[Needle(f" {fact.statement}", rng.random()) for fact in others],
        )


FACTS = (
    HiddenFact().task(
        version=1,
        paper="longspan, 2026; no paper",
        summary=f"one of {COUNT} facts about people in prose, asked for in plain words",
        score=first_line_ends,
        until=line_complete,
    ),
)
