"""Reduced scores: linear maps that approximate a product of long vectors by short ones, ``q · k ≈ θ_q(q) · θ_k(k)``.

A method that chooses keys by their scores reads every key for every query. With a calibration it reads ``θ_k(k)``
instead, by default an eighth of the key. ``longspan.calibrate`` creates a calibration.
"""

from longspan.calibration.file import Calibration, same_maps
from longspan.calibration.moments import Moments
from longspan.calibration.projection import Projection, flat_keys, flat_queries
from longspan.calibration.recall import RecallReport, RecallRow, recall
from longspan.calibration.solvers import SOLVERS, closed_form, pca, sgd

__all__ = [
    "SOLVERS",
    "Calibration",
    "Moments",
    "Projection",
    "RecallReport",
    "RecallRow",
    "closed_form",
    "flat_keys",
    "flat_queries",
    "pca",
    "recall",
    "same_maps",
    "sgd",
]
