"""A small Llama, trained for this package with a window of 512 tokens, and a text outside its training data.

With it, every claim of the library can be checked in seconds on any machine, without a download. The README in this
folder describes its training data, its accuracy and its limits.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.deferred import torch, transformers

FOLDER = Path(__file__).resolve().parent


def load_bundled(
    device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[transformers.LlamaForCausalLM, transformers.PreTrainedTokenizerFast]:
    """Load the bundled model, in eval mode on ``device``, and its tokenizer.

    The weights are float32; ``dtype`` casts them. The window (``config.max_position_embeddings``) is 512 tokens.
    """
    model = transformers.LlamaForCausalLM.from_pretrained(FOLDER, dtype=dtype or torch.float32, local_files_only=True)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(FOLDER, local_files_only=True)
    return model.to(device).eval(), tokenizer


@lru_cache(maxsize=1)
def heldout_text() -> str:
    """About 323,000 characters of prose that the model was not trained on, paragraphs one to a line."""
    return (FOLDER / "heldout.txt").read_text(encoding="utf-8")


def card() -> dict[str, Any]:
    """What was measured of the model inside its window, as ``training/ship.py`` wrote it.

    Returns:
        ``sha256`` (of the file of the weights; results beyond the window have one of the tensors), ``parameters``,
        ``window`` (tokens), ``prompts`` (of each task), ``tasks`` (by name: the mean ``score``, 0 to 1, its 95%
        ``interval`` and the number of prompts answered ``whole``), and of the held-out text ``perplexity`` and
        ``unigram_perplexity`` (per token) and ``nats_per_character``.
    """
    return dict(json.loads((FOLDER / "card.json").read_text(encoding="utf-8")))


def __getattr__(name: str) -> Any:
    if name != "bundled_calibration":
        raise AttributeError(f"module 'longspan.bundled' has no attribute {name!r}")
    from longspan.bundled.calibrated import bundled_calibration  # imported here: it imports torch

    return bundled_calibration
