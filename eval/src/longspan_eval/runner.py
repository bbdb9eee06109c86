"""Runs one prompt on a model as it is."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.errors import out_of_memory
from longspan_eval.generate import read
from longspan_eval.results import Sample
from longspan_eval.task import Example, Task


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
