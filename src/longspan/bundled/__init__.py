"""A small Llama of our own, trained with a window of 512 tokens, and a text that it has never seen.

It is here so that every claim of the library can be tried in seconds on any machine, with no download. The
README beside this file says what it was trained on, how well it does, and what it is not good for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.bundled.folder import FOLDER as FOLDER
from longspan.bundled.folder import heldout_text as heldout_text

if TYPE_CHECKING:
    from longspan.bundled.calibrated import bundled_calibration as bundled_calibration
    from longspan.bundled.loading import load_bundled as load_bundled

# These import torch, and one of them transformers, for their types too.
_WHERE = {"bundled_calibration": "calibrated", "load_bundled": "loading"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'longspan.bundled' has no attribute {name!r}")
    return getattr(import_module(f"longspan.bundled.{_WHERE[name]}"), name)
