"""The files of the bundled model and its text."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


@lru_cache(maxsize=1)
def heldout_text() -> str:
    """About 323,000 characters of prose that the model was not trained on, paragraphs one to a line."""
    return (FOLDER / "heldout.txt").read_text(encoding="utf-8")


def card() -> dict[str, Any]:
    """What was measured of the model inside its window, as ``training/evaluate_window.py --card`` wrote it.

    Returns:
        ``sha256`` (of the weights), ``parameters``, ``window`` (tokens), ``prompts`` (of each task), ``tasks`` (by
        name: the mean ``score``, 0 to 1, its 95% ``interval`` and the number of prompts answered ``whole``), and of
        the held-out text ``perplexity`` and ``unigram_perplexity`` (per token) and ``nats_per_character``.
    """
    return dict(json.loads((FOLDER / "card.json").read_text(encoding="utf-8")))
