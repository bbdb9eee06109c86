"""Training's facts about people, and questions about them in plain words.

A fact gives a person one thing: "Ada lives in Lisbon." The question is "Where does Ada live?" and the answer is a
sentence, so that it says what was asked for. The relations are those of the evaluation's facts
(`longspan_eval.tasks.facts`), the names, values and wordings are others. Names and values that are needed in large
numbers are made up of syllables, so that no name is known by heart.

Every wording states the fact in one sentence, has one value, and can be answered from that sentence alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from longspan_eval.tasks import facts as evaluated
from longspan_eval.tasks.facts import Fact, number
from longspan_eval.tasks.words import split


@dataclass(frozen=True)
class Relation:
    """What a fact says of a person, in the words of training.

    Attributes:
        statements: wordings of the fact, with `{name}` and `{value}`.
        questions: wordings of the question, with `{name}`.
        values: what it may be, beside made-up words; empty for numbers.
    """

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    values: tuple[str, ...]


# In the order of the evaluation's relations, which have the beginnings of their answers.
RELATIONS = (
    Relation(
        ("{name} lives in {value}.", "The home of {name} is in {value}.", "{name} has lived in {value} for years."),
        (
            "Where does {name} live?",
            "In which town does {name} live?",
            "Where is the home of {name}?",
            "Where has {name} a home?",
            "What is the name of the town of {name}?",
            "{name} lives where?",
        ),
        split("""Madrid Vienna Bristol Geneva Naples Bergen Dublin Krakow Seville Antwerp Leeds Turin Oslo Boston
        Denver Lima Quito Cairo Tunis Delhi Osaka Kyoto Perth Sydney Toronto Havana Bogota Munich Lyon Ghent"""),
    ),
    Relation(
        (
            "{name} works as a {value}.",
            "The job of {name} is that of a {value}.",
            "{name} earns a living as a {value}.",
        ),
        (
            "What is the job of {name}?",
            "What does {name} work as?",
            "What does {name} do for a living?",
            "Of which trade is {name}?",
            "{name} earns a living as what?",
            "What is the work of {name}?",
        ),
        split("""teacher baker farmer nurse writer singer driver painter lawyer doctor tailor miner waiter guard judge
        builder plumber dentist printer clerk sailor hunter pilot dancer"""),
    ),
    Relation(
        ("{name} keeps a {value}.", "The pet of {name} is a {value}.", "At home {name} has a {value}."),
        (
            "Which pet does {name} keep?",
            "What is the pet of {name}?",
            "Which animal does {name} have?",
            "What animal is at home with {name}?",
            "{name} has which pet?",
            "What does {name} keep at home?",
        ),
        split("""dog cat horse goat rabbit parrot pony duck goose hen pig sheep cow snake turtle mouse rat frog bee
        camel"""),
    ),
    Relation(
        (
            "{name} plays the {value}.",
            "The instrument of {name} is the {value}.",
            "{name} has learned to play the {value}.",
        ),
        (
            "What does {name} play?",
            "Which instrument does {name} play?",
            "What is the instrument of {name}?",
            "On what does {name} make music?",
            "{name} plays which instrument?",
            "What has {name} learned to play?",
        ),
        split("""piano guitar flute organ drum trumpet harp horn bass fiddle lute bells pipes banjo whistle"""),
    ),
    Relation(
        (
            "{name} likes to eat {value}.",
            "The favourite food of {name} is {value}.",
            "What {name} likes to eat is {value}.",
        ),
        (
            "What does {name} like to eat?",
            "What is the favourite food of {name}?",
            "Which food does {name} like?",
            "What should one cook for {name}?",
            "{name} likes to eat what?",
            "Which dish does {name} love?",
        ),
        split("""bread rice soup cheese apples pears fish beans corn cake honey eggs nuts plums grapes butter salad
        pasta onions"""),
    ),
    Relation(
        ("The number of {name} is {value}.", "{name} has the number {value}.", "You can call {name} at {value}."),
        (
            "What is the number of {name}?",
            "Which number does {name} have?",
            "What number has {name}?",
            "At which number do you call {name}?",
            "{name} has which number?",
            "How can one call {name}?",
        ),
        (),
    ),
    Relation(
        (
            "The favourite colour of {name} is {value}.",
            "{name} likes the colour {value}.",
            "{name} has a {value} coat.",
        ),
        (
            "What is the favourite colour of {name}?",
            "Which colour does {name} like?",
            "What colour does {name} like best?",
            "Of what colour is the coat of {name}?",
            "{name} likes which colour?",
            "Which colour is the one that {name} likes?",
        ),
        split("red blue green yellow black white brown grey pink orange purple gold silver violet"),
    ),
    Relation(
        ("{name} travels by {value}.", "{name} goes to work by {value}.", "The way that {name} goes is by {value}."),
        (
            "How does {name} travel?",
            "How does {name} go to work?",
            "By what does {name} travel?",
            "What does {name} take to go to work?",
            "{name} goes by what?",
            "How does {name} go on the way?",
        ),
        split("train bus car boat ship plane bike taxi truck van sled coach"),
    ),
)

TRAINING_NAMES = split("""
Anna Peter Maria John Paul Laura Tom Sara David Emma Jack Lucy Henry Alice Mark Jane Simon Rose Adam Eva Leo Nina Max
Julia Felix Clara Oscar Ruth Hugo Helen Victor Irene Martin Susan George Karen Frank Diana Robert Linda Carl Vera Walter
Olga Edgar Marta Bruno Elena Ivan Sofia Omar Layla Ali Fatima Chen Mei Kenji Yuki Raj Priya Kofi Amara Luis Carmen
""")
SYLLABLES = split("""
ba be bi bo ca co da de di do fa fe fi ga go gu ha he hi ja jo ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no pa
pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi ya za zo bran cor del fer gar hal jen kel lin
mar nor pel ris sten tor ven wil zan ther dor min gal son ton ley
""")
ENDINGS = split("n r s l t d m x th nd rk ll ck st")
# Letters as they come, for words that a tokenizer cuts in other places than those of syllables: a model that has only
# read such as above copies the beginning of "Hamburg" or "turquoise" and goes on with something else.
ONSETS = split("""
b c d f g h j k l m n p qu r s t v w x y z bl br ch cl cr dr fl fr gl gr kn ph pl pr sc sh sk sl sm sn sp st str sw th
tr tw wh wr
""")
VOWELS = split("a e i o u a e i o u y ai au ay ea ee ei eu ia ie io oa oi oo ou oy ua ue ui")
CODAS = split("""
b ck ct d ff g k l ld lk ll lm lt m mb mp n nd ng nk ns nt p ph pt que r rb rd rg rk rl rm rn rp rs rt s se sh sk sm sp
ss st t th tch ve x ze gue le er on et el
""")
FRAMES = (
    *("{question}",) * 4,
    *("Question: {question}", "Q: {question}", "Tell me: {question}", "Please answer: {question}"),
    *("I ask you: {question}", "The next question is: {question}", "What do you say? {question}", "Say it: {question}"),
)
# What a statement may begin and end with in training. The evaluation has other words in the same places, so that a
# model that knows three sentences by heart does not pass for one that reads.
OPENINGS = (
    *("",) * 4,
    *(
        "Today ",
        "Since last year ",
        "As everybody says, ",
        "In the village ",
        "After the long winter ",
        "Now and then ",
    ),
    *("Without any doubt ", "At the end of the street ", "For a short time ", "As it seems, ", "On most mornings "),
    *("Like the neighbours, ", "In spite of the rain ", "According to the paper, ", "Since the spring ", "Here "),
)
CLOSINGS = (
    *("",) * 4,
    *(" with two sisters", " near the river", " on the hill", " like the others", " without a care", " every week"),
    *(" in the morning", " since the summer", " as people say", " at the moment", " after work", " with great joy"),
)
# Half of the openings and closings are these and a made-up word.
BEFORE = split("In At On By Near With Without Under After Before Since Until Behind Beyond Despite From")
AFTER = (
    *("in the", "at the", "on the", "by the", "near", "with the", "with a", "without", "after the", "for a", "to the"),
    *("as a", "of the", "of", "from the", "before the", "in", "at", "under the", "like a", "and a"),
)

EVALUATED = frozenset(
    {name.lower() for name in evaluated.PEOPLE}
    | {value.lower() for relation in evaluated.RELATIONS for value in relation.values}
)


def made_up(rng: random.Random) -> str:
    """A word in lower case that is none of the evaluation's names and values."""
    while True:
        word = _word(rng)
        if word not in EVALUATED:
            return word


def _word(rng: random.Random) -> str:
    """A word of two or three syllables, or of letters as they come: in most cases in no dictionary."""
    if rng.random() < 0.4:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))
        return word + (rng.choice(ENDINGS) if rng.random() < 0.5 else "")
    start = rng.choice(VOWELS) if rng.random() < 0.15 else ""
    syllables = range(rng.randint(1, 3))
    return start + "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if rng.random() < 0.45 else "") for _ in syllables
    )


def training_facts(rng: random.Random, count: int) -> list[Fact]:
    """`count` facts in training's names, values and wordings. A person may have several, of different relations."""
    facts: list[Fact] = []
    taken: set[tuple[str, int]] = set()
    people = [training_name(rng) for _ in range(count if rng.random() < 0.5 else max(1, count // 2))]
    while len(facts) < count:
        name, kind = rng.choice(people), rng.randrange(len(RELATIONS))
        if len(people) == count:
            name = people[len(facts)]
        if (name, kind) in taken:
            people[rng.randrange(len(people))] = training_name(rng)
            continue
        taken.add((name, kind))
        relation = RELATIONS[kind]
        if not relation.values:
            value = number(rng)
        elif rng.random() < 0.2:
            value = rng.choice(relation.values)
        else:
            value = training_value(rng, capital=relation.values[0][0].isupper())
        facts.append(
            Fact(
                varied(rng, rng.choice(relation.statements).format(name=name, value=value), name),
                rng.choice(FRAMES).format(question=rng.choice(relation.questions).format(name=name)),
                evaluated.RELATIONS[kind].answer.format(name=name),
                value,
                name,
            )
        )
    return facts


def varied(rng: random.Random, statement: str, name: str) -> str:
    """A statement of training with an opening and a closing, each of them often empty."""
    opening = rng.choice(OPENINGS) if rng.random() < 0.5 else f"{rng.choice(BEFORE)} {made_up(rng)} "
    closing = rng.choice(CLOSINGS) if rng.random() < 0.5 else f" {rng.choice(AFTER)} {made_up(rng)}"
    if opening and not statement.startswith(name):
        statement = statement[0].lower() + statement[1:]
    return f"{opening}{statement.removesuffix('.')}{closing}."


def training_name(rng: random.Random) -> str:
    """A name of training: a fifth of them real ones."""
    return rng.choice(TRAINING_NAMES) if rng.random() < 0.2 else made_up(rng).capitalize()


def training_value(rng: random.Random, *, capital: bool) -> str:
    """A made-up value."""
    return made_up(rng).capitalize() if capital else made_up(rng)
