"""Runs prompts: one by one, or a sweep of every method at every length over the same ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.evaluation.generate import read
from longspan.evaluation.results import Sample
from longspan.evaluation.rows import STOCK, Row
from longspan.evaluation.task import Example, Task
from longspan.hf import restore
from longspan.methods import METHODS, Method

__all__ = ["STOCK", "failed", "method_for", "out_of_memory", "run_example", "sweep"]


def method_for(name: str, length: int) -> Method | None:
    """The method with its defaults, told the length it has to reach if it asks for one; None for ``"stock"``."""
    if name == STOCK:
        return None
    return METHODS[name]().reaching(length)


def sweep(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Mapping[int, Sequence[Example]],
    methods: Sequence[str],
    task: Task,
    filler: str = "",
) -> Iterator[Sample]:
    """One sample for each length, method and prompt, in that order.

    Where memory runs out, or a method's parameters rule a length out, the samples carry an ``error`` instead.

    Args:
        model: not extended; it is left so.
        prompts: for each length in tokens its prompts.
        methods: names in ``METHODS``, or ``"stock"``.
        task: whose prompts they are.
        filler: for the samples.
    """
    for length, group in prompts.items():
        for name in methods:
            try:
                Row(name, method_for(name, length)).attach(model, length)
            except ValueError as error:
                yield from (failed(name, length, prompt, str(error), task, filler) for prompt in group)
                continue
            try:
                for prompt in group:
                    yield run_example(model, tokenizer, name, length, prompt, task, filler)
            finally:
                restore(model)


def run_example(
    model: PreTrainedModel, tokenizer: Any, label: str, length: int, example: Example, task: Task, filler: str = ""
) -> Sample:
    """What a model, as it is, makes of one prompt; running out of memory is a sample with an ``error``.

    Raises:
        ValueError: the task scores outside 0..1.
    """
    try:
        reading = read(
            model,
            tokenizer,
            example.input_ids,
            scored=example.scored,
            max_new_tokens=task.new_tokens,
            until=task.until,
        )
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what the failure leaves behind in pieces would fail the next prompt too
        return failed(label, length, example, "out of memory", task, filler)
    losses = reading.losses
    correct = float(task.score(reading.text, example.references))
    if not 0.0 <= correct <= 1.0:
        raise ValueError(f"{task.name}: a score lies in 0..1, not {correct}")
    return Sample(
        method=label,
        length=length,
        seed=example.seed,
        depth=example.depth,
        answer=example.answer,
        prediction=reading.text,
        correct=correct,
        loss=math.fsum(losses) / len(losses) if losses else math.nan,
        scored=len(losses),
        seconds=reading.prefill_seconds + reading.decode_seconds,
        filler=filler,
        task=task.name,
        tokens=len(example.input_ids),
        references=example.references if len(example.references) > 1 else (),
    )


def failed(label: str, length: int, example: Example, error: str, task: Task, filler: str = "") -> Sample:
    """The sample of a prompt that could not be read."""
    return Sample(
        label, length, example.seed, example.depth, example.answer, error=error, filler=filler, task=task.name
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or (where torch has no error of its own) on the CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
