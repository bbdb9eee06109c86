"""Results of a sweep: one sample a prompt, cells over them, and all of it as JSON."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import longspan
from longspan import files
from longspan.hf.weights import weights_hash as weights_hash  # callers find it beside the results
from longspan_eval.perplexity import perplexity


@dataclass(frozen=True)
class Sample:
    """One prompt read by one method.

    Attributes:
        method: a row: a name in ``METHODS``, with parameters perhaps, or ``"stock"``.
        length: tokens of prompt and answer.
        depth: where the thing to find lay, 0 to 1; None where the task has no such place.
        answer, prediction: the first reference, and what the model said.
        correct: the task's score of the prediction, 0.0 to 1.0.
        loss: mean nats of the scored tokens.
        scored: how many tokens that was.
        seconds: for the prompt and the answer together.
        error: why there is no result (``"out of memory"``, or the rule that a parameter broke), else None.
        filler: what a passkey was hidden in, where a table has several; else empty.
        task: the task's name.
        tokens: of the prompt alone; 0 where none was read.
        references: all answers that count as right, where there are several.
        figures: whatever else was measured, by name.
    """

    method: str
    length: int
    seed: int
    depth: float | None
    answer: str
    prediction: str = ""
    correct: float = 0.0
    loss: float = math.nan
    scored: int = 0
    seconds: float = 0.0
    error: str | None = None
    filler: str = ""
    task: str = ""
    tokens: int = 0
    references: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """All prompts of one method at one length: passkeys found of ``n``, the rate and its 95% interval, perplexity."""

    method: str
    length: int
    n: int
    found: int
    rate: float
    interval: tuple[float, float]
    perplexity: float
    seconds: float
    error: str | None = None


def wilson(found: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a rate, 95% unless ``z`` says otherwise.

    ``found`` may also be a sum of scores in 0..1. Those vary less than answers that are right or wrong do at the same
    mean, so the interval is then too wide, if anything.
    """
    if n == 0:
        return 0.0, 1.0
    rate, spread = found / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def cell(samples: Sequence[Sample]) -> Cell:
    """The cell of samples that share a method and a length; one that failed makes the whole cell an error."""
    first = samples[0]
    error = next((s.error for s in samples if s.error is not None), None)
    if error is not None:
        return Cell(first.method, first.length, 0, 0, math.nan, (0.0, 1.0), math.nan, 0.0, error)
    n, found = len(samples), round(sum(s.correct for s in samples))
    nats = [s.loss for s in samples for _ in range(s.scored)]
    seconds = sum(s.seconds for s in samples)
    return Cell(
        first.method,
        first.length,
        n,
        found,
        found / n,
        wilson(found, n),
        perplexity(nats) if nats else math.nan,
        seconds,
    )


def cells(samples: Sequence[Sample]) -> dict[tuple[str, int], Cell]:
    """Every cell by ``(method, length)``, in order of first appearance."""
    groups: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.method, sample.length), []).append(sample)
    return {key: cell(group) for key, group in groups.items()}


def environment() -> dict[str, Any]:
    """What a figure depends on besides the code: versions, threads, processor architecture."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "longspan": longspan.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def write(path: Path, head: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Write a run as JSON, and return it: ``head``, the environment, every cell, every sample. NaN becomes null."""
    body = {
        **head,
        "environment": environment(),
        "cells": [asdict(c) for c in cells(samples).values()],
        "samples": [asdict(s) for s in samples],
    }
    body = finite(body)
    files.write(path, json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return body


def finite(value: Any) -> Any:
    """The same JSON value with None for numbers that are none; strict JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
