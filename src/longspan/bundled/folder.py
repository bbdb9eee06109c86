"""The files of the bundled model and its text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@lru_cache(maxsize=1)
def heldout_text() -> str:
    """About 323,000 characters of prose that the model was not trained on, paragraphs one to a line."""
    return (FOLDER / "heldout.txt").read_text(encoding="utf-8")
