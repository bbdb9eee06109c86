"""What a method chose while a model ran: recorded, found in the text, and shown on a page."""

from longspan.attend import Choice
from longspan.recording.chunks import Chunking
from longspan.recording.record import Trace, record

__all__ = ["Choice", "Chunking", "Trace", "record"]
