"""Runs a method on a layer's queries, keys and values."""

from longspan.attend.attender import Attender
from longspan.attend.fixed import FixedStep, why_not_fixed
from longspan.attend.observing import Choice, Observer
from longspan.attend.state import ForwardState

__all__ = ["Attender", "Choice", "FixedStep", "ForwardState", "Observer", "why_not_fixed"]
