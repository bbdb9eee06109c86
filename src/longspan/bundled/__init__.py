"""A small Llama, trained for this package with a window of 512 tokens, and a text outside its training data.

With it, every claim of the library can be checked in seconds on any machine, without a download. The README in this
folder describes its training data, its accuracy and its limits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longspan.bundled.folder import FOLDER as FOLDER
from longspan.bundled.folder import card as card
from longspan.bundled.folder import heldout_text as heldout_text

if TYPE_CHECKING:
    from longspan.bundled.calibrated import bundled_calibration as bundled_calibration
    from longspan.bundled.loading import load_bundled as load_bundled

# These modules import torch, and one also transformers, so they load at first use.
_WHERE = {"bundled_calibration": "calibrated", "load_bundled": "loading"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'longspan.bundled' has no attribute {name!r}")
    return getattr(import_module(f"longspan.bundled.{_WHERE[name]}"), name)
