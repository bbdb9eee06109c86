"""Texts as tokens, and what decides which."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def beginning(tokenizer: Any) -> list[int]:
    """The tokens that this tokenizer puts before a text: mostly one or none, of GLM-4 ``[gMASK]`` and ``<sop>``."""
    whole, plain = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False))
    places = range(len(whole) - len(plain) + 1)
    return next((whole[:n] for n in places if whole[n : n + len(plain)] == plain), [])


def encode(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over what decides how a tokenizer turns text into tokens: vocabulary, rules, special tokens, template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: Any = sorted(tokenizer.get_vocab().items())
    else:
        rules = json.loads(backend.to_str())
        for passing in ("truncation", "padding"):  # set by the last call, not a property of the tokenizer
            rules.pop(passing, None)
    what = [
        type(tokenizer).__name__ if backend is None else "",
        rules,
        tokenizer.all_special_ids,
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        list(tokenizer("a b\n1.")["input_ids"]),
        str(getattr(tokenizer, "chat_template", None)),
    ]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
