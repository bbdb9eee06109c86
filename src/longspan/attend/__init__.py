"""Runs a method on a layer's queries, keys and values."""

from longspan.attend.attender import Attender
from longspan.attend.calibrated import uses_calibration

__all__ = ["Attender", "uses_calibration"]
