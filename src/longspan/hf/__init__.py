"""The transformers side: probe a model, attach a method to it, keep its cache."""

from longspan.hf.attach import drafts_of, extend, extended, inspect, new_cache, restore
from longspan.hf.cache import LongspanCache
from longspan.hf.calibration.calibrate import calibrate, calibrate_each, measure_recall
from longspan.hf.graphs import graphed
from longspan.hf.progress_bar import progress
from longspan.model.report import LayerReport, Report

__all__ = [
    "LayerReport",
    "LongspanCache",
    "Report",
    "calibrate",
    "calibrate_each",
    "drafts_of",
    "extend",
    "extended",
    "graphed",
    "inspect",
    "measure_recall",
    "new_cache",
    "progress",
    "restore",
]
