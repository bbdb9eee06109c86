"""The tokens of a document and its text: in memory, or in files that are read when they are first needed."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from longspan.deferred import torch
from longspan.documents.folder import Folder
from longspan.documents.manifest import Manifest
from longspan.documents.state import entries_from
from longspan.errors import DocumentError

if TYPE_CHECKING:
    from torch import Tensor

_NAMES = "ids", "places"
_CODES = {"I32": "i", "I64": "q"}  # the types of numbers in a file of tokens, as array calls them


@dataclass(frozen=True)
class InMemory:
    """Tokens, and the text that they were made from.

    Attributes:
        length: how many tokens. sha256: of their ids.
        keeps_text: whether the text is there.
        ids: ``[T]`` int64.
        places: ``[T, 2]`` int64, the characters of each token in the text; ``NOWHERE`` of other tokens.
        text: None if it was not kept.
    """

    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    places: Tensor = field(default_factory=lambda: torch.empty(0, 2, dtype=torch.int64))
    text: str | None = ""

    @property
    def length(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        from longspan.documents import fingerprint  # which loads torch

        return fingerprint.ids_of(self.ids)

    @property
    def keeps_text(self) -> bool:
        return self.text is not None

    def close(self) -> None:
        """There is nothing to close."""


class InFiles:
    """See ``InMemory``. Opening compares the files' sizes; their checksums are compared when they are read.

    The files stay open, so that an append which replaces them changes nothing here.

    Args:
        data: bytes of the document's segments.

    Raises:
        DocumentError: a file is missing or has another size; reading it: it is not what was written.
    """

    def __init__(self, folder: Folder, manifest: Manifest, *, data: int) -> None:
        facts, number = manifest.facts, len(manifest.segments) - 1
        self._folder, self._manifest = folder, manifest
        self.length, self.sha256, self.keeps_text = facts.tokens, facts.tokens_sha256, facts.keeps_text
        # One lock for both: threads that need them first would read the same file at once.
        self._lock, self._refused = RLock(), dict[str, str]()
        self._numbers: tuple[array[int], array[int]] | None = None
        self._loaded: tuple[Tensor, Tensor] | None = None
        self._loaded_text: str | None = None
        self._tokens, self._text = f"tokens-{number:04}.safetensors", f"text-{number:04}.txt"
        self._files: dict[str, Any] = {}
        try:
            for name in (self._tokens, *([self._text] if facts.keeps_text else [])):
                self._files[name] = folder.open_small(name, manifest.files[name], tokens=facts.tokens, data=data)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; what was not read of them cannot be read any more."""
        for file in self._files.values():
            file.close()

    def _read(self, name: str) -> bytes:
        if name in self._refused:
            raise DocumentError(self._refused[name])
        try:
            return self._folder.read_whole(name, self._files[name], self._manifest.files[name])
        except DocumentError as error:
            self._refused[name] = str(error)  # the file is closed by now
            raise

    def _tensors(self) -> tuple[Tensor, Tensor]:
        with self._lock:
            if self._loaded is None:
                types = {"i": torch.int32, "q": torch.int64}
                ids, places = (torch.frombuffer(x, dtype=types[x.typecode]).long() for x in self._read_numbers())
                self._loaded = ids, places.view(-1, 2)
                self._numbers = None
            return self._loaded

    def check(self) -> None:
        """Read all that is here and compare it with the manifest, without torch; raises ``DocumentError``."""
        self._read_numbers()
        _ = self.text

    def _read_numbers(self) -> tuple[array[int], array[int]]:
        """The ids, and the places one after the other."""
        with self._lock:
            if self._numbers is None:
                self._numbers = self._load_numbers()
            return self._numbers

    def _load_numbers(self) -> tuple[array[int], array[int]]:
        try:
            entries, _ = entries_from(self._read(self._tokens))
            ids, places = (array(_CODES[entries[name]["dtype"]], bytes(entries[name]["data"])) for name in _NAMES)
        except KeyError as error:
            raise DocumentError(f"{self._folder}: {self._tokens} has no {error}; read the text again") from None
        shapes = [entries[name]["shape"] for name in _NAMES]
        good = shapes == [[self.length], [self.length, 2]]
        if not good or hashlib.sha256(array("q", ids).tobytes()).hexdigest() != self.sha256:
            raise DocumentError(f"{self._folder}: its tokens do not match its manifest; read the text again")
        return ids, places

    @property
    def ids(self) -> Tensor:
        """``[T]`` int64."""
        return self._tensors()[0]

    @property
    def places(self) -> Tensor:
        """``[T, 2]`` int64."""
        return self._tensors()[1]

    @property
    def text(self) -> str | None:
        with self._lock:
            if self._loaded_text is None and self.keeps_text:
                self._loaded_text = self._load_text()
            return self._loaded_text

    def _load_text(self) -> str:
        try:
            text = self._read(self._text).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DocumentError(f"{self._folder}: {self._text}: {error}; read the text again") from None
        end = max(self._read_numbers()[1]) if self._loaded is None else int(self._loaded[1].max())
        if end > len(text):
            raise DocumentError(f"{self._folder}: its tokens point outside of its text; read the text again")
        return text


Encoded = InMemory | InFiles
