"""Documents that ``longspan read`` wrote, which a server opens and leaves as they are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from longspan import files
from longspan.documents.folder import MANIFEST, READING, RECORD, SERVED, Folder, is_served, placed
from longspan.documents.manifest import Facts
from longspan.documents.method import method_of
from longspan.errors import DocumentError
from longspan.serve.documents.record import DocumentRecord

SUFFIX = ".longspan"  # of what is listed with the reason if there is no document in it


def written_in(root: Path) -> list[Path]:
    """The folders in ``root`` that `longspan read` wrote, in the order of their names."""
    return [path for path in sorted(root.iterdir()) if _is_written(path)]


def _is_written(path: Path) -> bool:
    try:
        there = any((path / name).is_file() for name in (MANIFEST, READING))
        return path.is_dir() and not is_served(path) and (there or path.suffix == SUFFIX)
    except PermissionError:  # somebody else's folder, such as lost+found
        return path.suffix == SUFFIX


def record_of(path: Path) -> DocumentRecord:
    """What a server tells of such a document before it is opened; a damaged one is listed, too."""
    place = os.path.realpath(path)
    record = DocumentRecord(
        f"doc-{hashlib.sha256(os.fsencode(place)).hexdigest()[:24]}",  # the same at each start
        _name(Path(os.path.abspath(path))).encode("utf-8", "replace").decode(), 0, 0, 0, Path(place), own=False,
    )  # fmt: skip
    with suppress(OSError):
        record.created_at = int(Path(place).stat().st_mtime)
    with suppress(OSError, DocumentError):  # whose reason is told when it is opened
        manifest = Folder(place).manifest()
        if manifest.facts.keeps_text:  # else there are none that the page could ask for
            record.characters = max((one.stop for one in manifest.facts.sources), default=0)
        record.bytes = sum(file.size for name, file in manifest.files.items() if name.startswith("text-"))
        record.tokens = manifest.facts.tokens
    return record


def _name(path: Path) -> str:
    """The name of a document: of its folder, or the one that another server gave it."""
    if path.name == SERVED:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(files.read(path.parent / RECORD))["name"])
    return path.name


def first_facts(root: Path | None, named: Iterable[Path]) -> tuple[Path, Facts] | None:
    """The first document that a server will open, with its facts: of those named, else of those in ``root``.

    Raises:
        DocumentError: one that is named cannot be opened by anyone.
    """
    for path in (found := [placed(one) for one in named]):
        try:
            method_of(Folder(path).manifest().facts)
        except DocumentError as error:
            raise DocumentError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    inside = sorted(root.iterdir()) if root is not None and root.is_dir() else []
    for path in found or map(placed, inside):
        with suppress(OSError, DocumentError):
            facts = Folder(path).manifest().facts
            method_of(facts)
            return path, facts
    return None
