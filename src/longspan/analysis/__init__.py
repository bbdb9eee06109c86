"""What the heads look at: record the choices of an extended model, measure them, show them."""

from longspan.analysis.metrics import Chunking, counts, cover_rate, gini, hit_rate, uniformity
from longspan.analysis.record import Trace, record
from longspan.attend import Choice

__all__ = ["Choice", "Chunking", "Trace", "counts", "cover_rate", "gini", "hit_rate", "record", "uniformity"]
