"""The logits that a forward computes."""

from __future__ import annotations

import inspect

from transformers import PreTrainedModel


def last_logits(model: PreTrainedModel, count: int) -> dict[str, int]:
    """The option of a forward that computes the last ``count`` logits alone; empty if the model has none."""
    return {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
