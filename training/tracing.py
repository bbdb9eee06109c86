"""Training documents about a whole text: chains of variables, and the most common words of a list.

Each function appends one document of about `room` tokens at most to a draft, or nothing if none fits.
"""

from __future__ import annotations

import random

from documents import Draft
from longspan_eval.tasks import common_words as evaluated_words
from longspan_eval.tasks import ruler_tracing, ruler_words
from longspan_eval.tasks.ruler_tracing import assignments, chain


def variables(draft: Draft, rng: random.Random, room: int) -> None:
    """Chains of assignments in noise or alone, and which variables have a value."""
    full = rng.random() < 0.5 and room > 150
    letters = rng.choice((3, 5))
    hops = rng.randint(1, 4 if room > 200 else 2)
    count = max(1, min(rng.choice((1, 1, 2, 3)), (room - 70) // (14 * (hops + 1))))
    chains = [chain(rng, hops, letters) for _ in range(count)]
    queues = [assignments(*one) for one in chains]
    lines: list[str] = []
    while any(queues):
        lines.append(rng.choice([queue for queue in queues if queue]).pop(0))
    start = len(draft)
    if full:
        draft.text("\n" + ruler_tracing.TASK.rstrip("\n"))
    spare = room - 60 * count if rng.random() < 0.6 else 0
    draft.hide(lines, spare, True, ordered=True)
    for names, value in rng.sample(chains, count):
        if full:
            draft.ask(ruler_tracing.QUESTION.format(value=value, count=hops + 1), f" {' '.join(names)}")
        else:
            draft.ask(f"\nVariables of the value {value}:", f" {' '.join(names)}")
        if len(draft) - start > room - 30:
            break


def common_words(draft: Draft, rng: random.Random, room: int) -> None:
    """A numbered list of words, some of which stand in it several times: those are asked for, by first appearance."""
    full = rng.random() < 0.5 and room > 200
    entries = (room - (90 if full else 25)) // 7
    times = rng.randint(3, 6) if entries > 24 else 3
    count = min(10, entries // (times + 2))
    if count < 1:
        return
    count = rng.randint(min(count, 2), count)
    others = rng.randint(1, max(1, min(12, entries - count * times)))
    words = list(dict.fromkeys(draft.material.word() for _ in range(count + others)))
    common = words[:count]
    listing = common * times + words[count:]
    rng.shuffle(listing)
    if full:
        if rng.random() < 0.3:
            draft.hide([], room - 90 - 6 * len(listing), True)
        draft.text("\n" + ruler_words.CWE_TASK.strip())
    draft.text("\n" + " ".join(f"{n}. {word}" for n, word in enumerate(listing, 1)))
    common.sort(key=listing.index)
    question = evaluated_words.QUESTION if full else "\nThe {count} most common words:"
    draft.ask(question.format(count=count), " " + " ".join(f"{n}. {word}" for n, word in enumerate(common, 1)))
