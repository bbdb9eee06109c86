"""Training documents in which something is looked up: pass keys, magic values, JSON pairs, and facts.

Each function appends one document of at most `room` tokens to a draft, or nothing if not even a small one fits.
RULER's own wordings are among those trained on, its keys are not. `HELDOUT_WORDING` is never trained on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from documents import Draft
from facts import training_facts
from longspan_eval.tasks import key_value, ruler_niah
from longspan_eval.tasks.passkey import NEEDLE, QUESTION, TASK


@dataclass(frozen=True)
class Wording:
    """How a key's value is told and asked for.

    Attributes:
        statement: with `{key}` and `{value}`.
        question: for one value, with `{key}`; the answer follows.
        plural: for several, with `{query}`, the keys; the answer follows.
        task: what stands before the text, and before that with several values; may be empty.
    """

    statement: str
    question: str
    plural: str
    task: str = ""
    tasks: str = ""

    def fragment(self, key: str, value: str) -> str:
        """The statement from its key on, without the full stop: answers repeat it if the question ends otherwise."""
        return self.statement[self.statement.index("{key}") :].rstrip(".").format(key=key, value=value)


def _ruler(kind: str) -> Wording:
    one = {"some": "A", "are": "is", "are_all": "is", "values": kind}
    several = {"some": "Some", "are": "are", "are_all": "are all", "values": f"{kind}s"}
    return Wording(
        ruler_niah.NEEDLE.format(values=f"{kind}s", key="{key}", value="{value}"),
        ruler_niah.QUESTION.format(**one, query="{key}"),
        ruler_niah.QUESTION.format(**several, query="{query}"),
        ruler_niah.TASK.format(**one),
        ruler_niah.TASK.format(**several),
    )


RULER, RULER_UUID = _ruler("number"), _ruler("uuid")
WORDINGS = (
    Wording("The number of {key} is {value}.", "\nThe number of {key} is", "\nThe numbers of {query} are"),
    Wording(
        "Remember that the code for {key} is {value}.",
        "\nWhat is the code for {key}? The code for {key} is",
        "\nWhat are the codes for {query}? The codes for {query} are",
    ),
    Wording("{key}: {value}.", "\n{key}:", "\nAll of {query}:"),
    Wording(
        "The secret value of {key} is {value}.",
        "\nQuestion: Which secret value has {key}? Answer: The secret value of {key} is",
        "\nQuestion: Which secret values have {query}? Answer: The secret values of {query} are",
    ),
    Wording(
        "The pass key of {key} is {value}.",
        "\nWhat is the pass key of {key}? The pass key of {key} is",
        "\nWhat are the pass keys of {query}? The pass keys of {query} are",
    ),
)
HELDOUT_WORDING = Wording(
    "Please note that the locker of {key} opens with {value}.",
    "\nWhich number opens the locker of {key}? The locker of {key} opens with",
    "\nWhich numbers open the lockers of {query}? The lockers of {query} open with",
)


def listed(items: list[str]) -> str:
    """`a`, or `a, and b`, or `a, b, and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])}, and {items[-1]}"


def passkeys(draft: Draft, rng: random.Random, room: int) -> None:
    """The passkey task over noise, prose, or nothing but a few tokens."""
    key = draft.material.digits(5, 5)
    if rng.random() < 0.5:
        draft.text(TASK)
        room -= 40
    # About what the question takes; `hide` fills what is left with whole sentences.
    draft.hide([NEEDLE.format(key=key).rstrip("\n")], room - 20, rng.random() < 0.5)
    draft.ask(QUESTION, f" {key}.")


def magic(draft: Draft, rng: random.Random, room: int) -> None:
    """Keys with one value or several, hidden in prose, noise or other keys' sentences."""
    material = draft.material
    if rng.random() < (0.5 if room > 240 else 0.2):
        wording, uuids = (RULER_UUID, True) if rng.random() < 0.35 and room > 240 else (RULER, False)
    else:
        wording, uuids = rng.choice(WORDINGS), False
    words = not uuids and rng.random() < 0.2
    several = rng.random() < (0.7 if room > 240 else 0.35)

    def value() -> str:
        if words:
            return material.word()
        return material.uuid() if uuids else material.digits(7, 7) if rng.random() < 0.5 else material.digits()

    each = len(material.encode(wording.statement.format(key="abcde-fghij", value="1234567"))) + (40 if uuids else 0)
    asking = len(material.encode(wording.question)) + 10
    body = int(room * rng.uniform(0.4, 0.75)) - (60 if wording.task else 0)
    most = max(1, min(12, body // each))
    count = rng.randint(1, most)
    values = rng.randint(2, 4) if several and rng.random() < 0.6 and most >= 2 else 1
    if several and most >= 4 and rng.random() < 0.4:
        count = values = 4  # one key alone, as RULER asks
    keys = [material.uuid() if uuids and rng.random() < 0.5 else material.key() for _ in range(max(1, count // values))]
    told = {key: [value() for _ in range(values)] for key in keys}
    lead = "\n" if rng.random() < 0.5 else " "
    pairs = [(key, one) for key, own in told.items() for one in own]
    rng.shuffle(pairs)
    order = {key: [one for other, one in pairs if other == key] for key in told}
    if wording.task and rng.random() < 0.6:
        draft.text("\n" + (wording.tasks if several else wording.task).rstrip("\n"))
    start = len(draft)
    sentences = [f"{lead}{wording.statement.format(key=key, value=one)}" for key, one in pairs]
    draft.hide(sentences, body if rng.random() < 0.7 else 0, rng.random() < 0.4, ordered=True)
    left = room - (len(draft) - start)
    names = rng.sample(sorted(told), len(told))
    if values > 1:
        for key in names:
            draft.ask(wording.plural.format(query=key), f" {listed(order[key])}.")
    elif several and len(names) > 1:
        chosen = names[: rng.randint(2, 4)]
        pairs_asked = ", ".join(wording.fragment(key, told[key][0]) for key in chosen)
        draft.ask(wording.plural.format(query=listed(chosen)), f" {pairs_asked}.")
    else:
        for key in names[: max(1, left // asking)]:
            answer = wording.fragment(key, told[key][0]) if wording.task else told[key][0]
            draft.ask(wording.question.format(key=key), f" {answer}.")


def json_pairs(draft: Draft, rng: random.Random, room: int) -> None:
    """A JSON object of keys and values, and several of its keys."""
    material = draft.material
    most = max(2, min(20, int(room * 0.6) // 14))
    wordy = rng.random() < 0.2
    pairs = {
        (material.word() if rng.random() < 0.8 else material.digits(5, 5)): material.word()
        if wordy
        else material.digits(4, 7)
        for _ in range(rng.randint(2, most))
    }
    start = len(draft)
    full = rng.random() < (0.6 if room > 150 else 0.3)
    if full:
        if rng.random() < 0.3:
            draft.hide([], room - 22 * len(pairs), True)
        draft.text(key_value.TASK)
    else:
        draft.text("\n")
    draft.text("{" + ", ".join(f'"{key}": "{value}"' for key, value in pairs.items()) + "}")
    left = room - (len(draft) - start)
    for key in rng.sample(sorted(pairs), min(len(pairs), max(1, left // (35 if full else 14)))):
        draft.ask(
            key_value.QUESTION.format(key=key) if full else f'\n"{key}":',
            f' "{key}": "{pairs[key]}"' if full else f' "{pairs[key]}"',
        )


def fact_questions(draft: Draft, rng: random.Random, room: int) -> None:
    """Facts about people in prose, and several of them asked for in plain words."""
    most = max(1, min(14, int(room * 0.55) // 14))
    facts = training_facts(rng, rng.randint(1, most))
    start = len(draft)
    draft.hide([f" {fact.statement}" for fact in facts], int(room * 0.6) if rng.random() < 0.7 else 0, False)
    left = room - (len(draft) - start)
    lead = "\nAnswer:" if rng.random() < 0.5 else ""
    for fact in rng.sample(facts, min(len(facts), max(1, left // 28))):
        draft.ask(f"\n{fact.question}{lead}", f" {fact.answer} {fact.value}.")
