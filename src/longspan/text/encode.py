"""Texts as tokens."""

from __future__ import annotations

from typing import Any


def beginning(tokenizer: Any) -> list[int]:
    """The tokens that this tokenizer puts before a text: mostly one or none, of GLM-4 ``[gMASK]`` and ``<sop>``."""
    whole, plain = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False))
    places = range(len(whole) - len(plain) + 1)
    return next((whole[:n] for n in places if whole[n : n + len(plain)] == plain), [])


def encode(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
