"""One measurement's sample, and the environment that a run's samples depend on besides the code."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

import longspan

NOT_FINITE = (
    "the model's output is NaN or infinite, which is no answer: weights are damaged, or the dtype is too narrow for "
    "them; take bfloat16 or float32 for float16"
)


@dataclass(frozen=True)
class Sample:
    """One measurement: in most cases a prompt that one method has read and answered.

    Attributes:
        method: the label of a ``MethodSpec``.
        length: tokens of prompt and answer.
        seed: what the prompt was drawn from.
        depth: where the thing to find lay, 0 to 1; None if the task has no such place.
        answer, prediction: the first reference, and what the model said.
        correct: the task's score of the prediction, 0.0 to 1.0.
        loss: mean nats of the scored tokens.
        scored: how many tokens that was.
        seconds: for the prompt and the answer together.
        error: why there is no result (``"out of memory"``, or the rule that a parameter broke), else None.
        filler: what a passkey was hidden in, if a table has several; else empty.
        task: the task's name, or what else tells a measure's samples from those of others.
        tokens: of the prompt alone; 0 if none was read.
        references: all answers that count as right, if there are several.
        figures: whatever else was measured, by name.
        kv_tier, threads: where the session kept keys and values, and the threads of the process. Seconds depend on
            them; answers do not, and so no key does. Empty and 0 in samples from before they were kept.
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
    kv_tier: str = ""
    threads: int = 0

    def timed_under(self, kv_tier: str, threads: int) -> bool:
        """Whether its seconds are known to be those of this storage of keys and values, and so many threads."""
        return (self.kv_tier, self.threads) == (kv_tier, threads)


def versions() -> dict[str, str]:
    """Of what computes a sample."""
    return {"longspan": longspan.__version__, "torch": torch.__version__, "transformers": transformers.__version__}


def environment() -> dict[str, Any]:
    """A figure's environment besides the code: versions, threads, processor architecture."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        **versions(),
    }


def finite(value: Any) -> Any:
    """The same JSON value with None for numbers that are not finite; strict JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
