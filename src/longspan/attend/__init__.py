"""Runs a method on a layer's queries, keys and values."""

from longspan.attend.attender import Attender
from longspan.attend.calibrated import uses_calibration
from longspan.attend.observing import Choice, Observer

__all__ = ["Attender", "Choice", "Observer", "uses_calibration"]
