"""The calibration of the bundled model."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from longspan.calibration import Calibration


@lru_cache(maxsize=1)
def bundled_calibration() -> Calibration:
    """Reduced scores for the bundled model in float32, for ``longspan.extend(model, ..., calibration=...)``.

    Reduced keys have 8 of the 64 key channels of a layer, and 4 of the 32 channels of a key head.
    ``training/calibrate.py`` computed them from the training text.
    """
    return Calibration.load(Path(__file__).with_name("calibration.safetensors"))
