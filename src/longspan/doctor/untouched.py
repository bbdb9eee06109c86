"""Whether a method leaves prompts inside the window alone, on the live model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from longspan.calibration import Calibration
from longspan.doctor.measuring import some_text
from longspan.hf import Report, extended
from longspan.hf.probe.compare import error_of, tolerance
from longspan.methods import Method
from longspan.weights.models import kept_in


@dataclass(frozen=True)
class Untouched:
    """A prompt's logits beside those of the model as it was.

    Attributes:
        tokens: of the prompt, all of it inside the window.
        exact: rows that the method states to be the model's own; ``tokens`` if the method changes no short prompt.
        difference: the largest of those rows' logits, over the largest logit; None if no row is stated to be equal.
        budget: the most that rounding explains, as ``extend`` holds each layer to.
        holds: whether it is within that; None if no row is stated to be equal.
    """

    tokens: int
    exact: int
    difference: float | None
    budget: float
    holds: bool | None


def check(
    model: PreTrainedModel,
    method: Method,
    report: Report,
    *,
    window: int | None,
    calibration: Calibration | None,
    length: int,
    tokens: int,
    device: torch.device,
) -> Untouched:
    """Run a prompt through the model as it is and under the method, which is taken off again.

    Args:
        method, window, calibration: as ``extend`` takes them.
        report: of that method on this model.
        length: tokens that the method is to reach.
        tokens: of the prompt, at most the window.
    """
    exact = min(report.method.exact_queries(report.window, tokens), tokens)
    ids = some_text(model, tokens, device)
    with torch.inference_mode():
        stock = model(input_ids=ids, use_cache=False).logits[0, :exact].float()
        with extended(model, method, window=window, calibration=calibration, length=length):
            ours = model(input_ids=ids, use_cache=False).logits[0, :exact].float()
    budget = tolerance(kept_in(model))
    if not exact:
        return Untouched(tokens, 0, None, budget, None)
    difference = error_of(ours, stock)
    return Untouched(tokens, exact, difference, budget, difference <= budget)
