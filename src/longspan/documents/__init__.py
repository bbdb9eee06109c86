"""Documents: a text is read once, kept, and asked many times.

Each name is imported at its first use: listing and verifying documents needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.documents.asking import Answer
    from longspan.documents.checking import verify
    from longspan.documents.document import Document
    from longspan.documents.passages import Passage
    from longspan.documents.reader import read

_WHERE = {"Answer": "asking", "Document": "document", "Passage": "passages", "read": "reader", "verify": "checking"}

__all__ = ["Answer", "Document", "Passage", "read", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'longspan.documents' has no attribute {name!r}")
    return getattr(import_module(f"longspan.documents.{_WHERE[name]}"), name)
