"""Recording of the keys that a method chooses in a running model, and a page that shows them in the text."""

from longspan.attend import Choice
from longspan.recording.chunks import Chunking
from longspan.recording.record import Trace, record

__all__ = ["Choice", "Chunking", "Trace", "record"]
