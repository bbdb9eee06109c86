"""Words to make keys, names and lists of; lists of our own, in alphabetical order."""

from __future__ import annotations

import json
from pathlib import Path

_LISTS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))


def split(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


ADJECTIVES, NOUNS, ISLANDS, KINDS, THINGS = (
    split(" ".join(_LISTS[name])) for name in ("adjectives", "nouns", "islands", "kinds", "things")
)
