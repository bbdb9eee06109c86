"""The heads' choices: record those of an extended model, measure them, show them."""

from longspan.attend import Choice
from longspan.recording.chunks import Chunking
from longspan.recording.record import Trace, record
from longspan_eval.analysis.metrics import counts, cover_rate, gini, hit_rate, uniformity

__all__ = ["Choice", "Chunking", "Trace", "counts", "cover_rate", "gini", "hit_rate", "record", "uniformity"]
