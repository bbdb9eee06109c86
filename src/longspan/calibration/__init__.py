"""Reduced scores: linear maps under which a short product stands for a long one, ``q · k ≈ θ_q(q) · θ_k(k)``.

A method that chooses keys by their scores reads every key for every query. Under a calibration it reads ``θ_k(k)``
instead, an eighth of the key by default. ``longspan.calibrate`` makes one.
"""

from longspan.calibration.file import Calibration, same_maps
from longspan.calibration.moments import Moments
from longspan.calibration.projection import Projection, flat_keys, flat_queries
from longspan.calibration.recall import RecallReport, Row, recall
from longspan.calibration.solvers import SOLVERS, closed_form, objective, pca, sgd

__all__ = [
    "SOLVERS",
    "Calibration",
    "Moments",
    "Projection",
    "RecallReport",
    "Row",
    "closed_form",
    "flat_keys",
    "flat_queries",
    "objective",
    "pca",
    "recall",
    "same_maps",
    "sgd",
]
