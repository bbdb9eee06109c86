"""Runs a method on a layer's queries, keys and values."""

from longspan.attend.attender import Attender
from longspan.attend.layer import LayerCall
from longspan.attend.observing import Choice, Observer
from longspan.attend.ranks import Ranks
from longspan.attend.state import ForwardState
from longspan.attend.steps.graph_gpu import RecordedStep, unrecordable_reason
from longspan.attend.weighing import GroupWeights

__all__ = [
    "Attender",
    "Choice",
    "ForwardState",
    "GroupWeights",
    "LayerCall",
    "Observer",
    "Ranks",
    "RecordedStep",
    "unrecordable_reason",
]
