"""Runs a sweep: every method at every length over the same prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.evaluation.generate import number_complete, read
from longspan.evaluation.haystack import ANSWER_ROOM, Prompt
from longspan.evaluation.passkey import score
from longspan.evaluation.results import Sample
from longspan.hf import extend, restore
from longspan.methods import METHODS, Method

STOCK = "stock"  # the row of the model as transformers runs it, without longspan


def method_for(name: str, length: int) -> Method | None:
    """The method with its defaults, told the length it has to reach if it asks for one; None for ``"stock"``."""
    if name == STOCK:
        return None
    return METHODS[name]().reaching(length)


def sweep(
    model: PreTrainedModel, tokenizer: Any, prompts: Mapping[int, Sequence[Prompt]], methods: Sequence[str]
) -> Iterator[Sample]:
    """One sample for each length, method and prompt, in that order.

    Where memory runs out, or a method's parameters rule a length out, the samples carry an ``error`` instead.

    Args:
        model: not extended; it is left so.
        prompts: for each length in tokens its prompts.
        methods: names in ``METHODS``, or ``"stock"``.
    """
    for length, group in prompts.items():
        for name in methods:
            try:
                method = method_for(name, length)
                if method is not None:
                    extend(model, method)
            except ValueError as error:
                yield from (_failed(name, length, prompt, str(error)) for prompt in group)
                continue
            try:
                for prompt in group:
                    yield _sample(model, tokenizer, name, length, prompt)
            finally:
                restore(model)


def _sample(model: PreTrainedModel, tokenizer: Any, name: str, length: int, prompt: Prompt) -> Sample:
    try:
        reading = read(
            model,
            tokenizer,
            prompt.input_ids,
            scored=prompt.scored,
            max_new_tokens=ANSWER_ROOM,
            until=number_complete,
        )
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _failed(name, length, prompt, "out of memory")
    return Sample(
        method=name,
        length=length,
        seed=prompt.seed,
        depth=prompt.depth,
        answer=prompt.answer,
        prediction=reading.text,
        correct=score(reading.text, prompt.answer),
        loss=sum(reading.losses) / len(reading.losses),
        scored=len(reading.losses),
        seconds=reading.prefill_seconds + reading.decode_seconds,
    )


def _failed(name: str, length: int, prompt: Prompt, error: str) -> Sample:
    return Sample(name, length, prompt.seed, prompt.depth, prompt.answer, error=error)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or (where torch has no error of its own) on the CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
