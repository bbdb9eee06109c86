"""The transformers side: probe a model, attach a method to it, keep its cache."""

from longspan.hf.attach import extend, extended, inspect, new_cache, restore
from longspan.hf.cache import LongspanCache
from longspan.hf.report import LayerReport, Report

__all__ = ["LayerReport", "LongspanCache", "Report", "extend", "extended", "inspect", "new_cache", "restore"]
