"""The calibration of the bundled model."""

from __future__ import annotations

from functools import lru_cache

from longspan.bundled.folder import FOLDER
from longspan.calibration import Calibration


@lru_cache(maxsize=1)
def bundled_calibration() -> Calibration:
    """Reduced scores for the bundled model in float32, for ``longspan.extend(model, ..., calibration=...)``.

    Of 64 key channels a layer 8 are kept, 4 a key head. ``training/calibrate.py`` made it, from the training text.
    """
    return Calibration.load(FOLDER / "calibration.safetensors")
