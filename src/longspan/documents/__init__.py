"""Documents: a text is read once, kept, and asked many times."""

from longspan.documents.asking import Answer
from longspan.documents.document import Document
from longspan.documents.opening import verify
from longspan.documents.passages import Passage
from longspan.documents.reader import read

__all__ = ["Answer", "Document", "Passage", "read", "verify"]
