"""A model whose answers are given: all else of a server is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from longspan.serve import generation
from longspan.serve.sampling import Token


def script(patch: pytest.MonkeyPatch, tokenizer: Any) -> Callable[[str], None]:
    """Returns a function that sets what every answer says from then on; the answer ends with an end token."""
    told: list[int] = []

    class Scripted:
        def __init__(self, model: Any, sampling: Any, prompt_tokens: int, max_tokens: int) -> None:
            self._prompt = prompt_tokens

        def __call__(self, ids: Tensor, logits: Tensor) -> Token:
            return Token(told[len(ids) - self._prompt], -0.5)

    def say(text: str) -> None:
        told[:] = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    patch.setattr(generation, "Sampler", Scripted)
    return say
