"""A document of the server: what the API tells of it, and ``meta.json`` in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from longspan import files
from longspan.documents import Document
from longspan.documents.folder import RECORD, SERVED
from longspan.serve.engine import Job

_WRITTEN = ("name", "created_at", "bytes", "characters", "layout", "system")

Status = Literal["queued", "reading", "ready", "failed"]


@dataclass
class DocumentRecord:
    """One document of the server.

    Attributes:
        bytes: of the file. characters: of its text. tokens: of the document, None until they are counted.
        tokens_read: that are kept. rate: tokens a second of this process; None until there is one.
        own: whether the server read it, and may change and delete its folder.
        questions: that the page suggests.
        layout, system: what it is read in; see ``longspan.read``.
        document: when it is ready. job: what reads it, or opens what an earlier process read (``opens``).
    """

    id: str
    name: str
    created_at: int
    bytes: int
    characters: int
    folder: Path
    layout: str = "auto"
    system: str = ""
    status: Status = "queued"
    tokens: int | None = None
    tokens_read: int = 0
    rate: float | None = None
    error: str | None = None
    document: Document | None = None
    opens: bool = False
    own: bool = True
    questions: tuple[str, ...] = ()
    job: Job | None = field(default=None, repr=False)

    @property
    def place(self) -> Path:
        """Where the document itself lies."""
        return self.folder / SERVED if self.own else self.folder

    def as_plain(self) -> dict[str, Any]:
        """The API's object."""
        left = None
        if self.status == "reading" and self.rate and self.tokens is not None:
            left = round((self.tokens - self.tokens_read) / self.rate, 3)
        return {
            "id": self.id, "object": "document", "name": self.name, "status": self.status,
            "created_at": self.created_at, "bytes": self.bytes, "characters": self.characters, "tokens": self.tokens,
            "tokens_read": self.tokens_read, "tokens_per_second": self.rate and round(self.rate, 3),
            "seconds_left": left, "error": self.error, "own": self.own,
            "questions": self.questions,
        }  # fmt: skip

    def write(self) -> None:
        """Write ``meta.json``, for a document that is the server's own."""
        said = {name: getattr(self, name) for name in _WRITTEN}
        files.write(self.folder / RECORD, json.dumps(said, indent=1), follow=False)
