"""Runs prompts: one by one, or a sweep of every method at every length over the same ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.evaluation.generate import number_complete, read
from longspan.evaluation.passkey import ANSWER_ROOM, score
from longspan.evaluation.results import Sample
from longspan.evaluation.rows import STOCK, Row
from longspan.evaluation.task import Example
from longspan.hf import restore
from longspan.methods import METHODS, Method

__all__ = ["STOCK", "failed", "method_for", "out_of_memory", "run_example", "sweep"]


def method_for(name: str, length: int) -> Method | None:
    """The method with its defaults, told the length it has to reach if it asks for one; None for ``"stock"``."""
    if name == STOCK:
        return None
    return METHODS[name]().reaching(length)


def sweep(
    model: PreTrainedModel, tokenizer: Any, prompts: Mapping[int, Sequence[Example]], methods: Sequence[str]
) -> Iterator[Sample]:
    """One sample for each length, method and prompt, in that order.

    Where memory runs out, or a method's parameters rule a length out, the samples carry an ``error`` instead.

    Args:
        model: not extended; it is left so.
        prompts: for each length in tokens its prompts, of prose.
        methods: names in ``METHODS``, or ``"stock"``.
    """
    for length, group in prompts.items():
        for name in methods:
            try:
                Row(name, method_for(name, length)).attach(model, length)
            except ValueError as error:
                yield from (failed(name, length, prompt, str(error)) for prompt in group)
                continue
            try:
                for prompt in group:
                    yield run_example(model, tokenizer, name, length, prompt)
            finally:
                restore(model)


def run_example(
    model: PreTrainedModel, tokenizer: Any, label: str, length: int, example: Example, filler: str = "prose"
) -> Sample:
    """What a model, as it is, makes of one passkey prompt; running out of memory is a sample with an ``error``."""
    try:
        reading = read(
            model,
            tokenizer,
            example.input_ids,
            scored=example.scored,
            max_new_tokens=ANSWER_ROOM,
            until=number_complete,
        )
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return failed(label, length, example, "out of memory", filler)
    losses = reading.losses
    return Sample(
        method=label,
        length=length,
        seed=example.seed,
        depth=example.depth,
        answer=example.answer,
        prediction=reading.text,
        correct=score(reading.text, example.references),
        loss=math.fsum(losses) / len(losses) if losses else math.nan,
        scored=len(losses),
        seconds=reading.prefill_seconds + reading.decode_seconds,
        filler=filler,
    )


def failed(label: str, length: int, example: Example, error: str, filler: str = "prose") -> Sample:
    """The sample of a prompt that could not be read."""
    return Sample(label, length, example.seed, example.depth, example.answer, error=error, filler=filler)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or (where torch has no error of its own) on the CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
