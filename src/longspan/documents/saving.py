"""Write a document: bytes first, then the manifest, which is there whole or as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import torch
from safetensors.torch import save
from transformers import PreTrainedModel

from longspan.documents import segments as files_of_segments
from longspan.documents.canary import make_canary
from longspan.documents.contents import Contents
from longspan.documents.facts import facts_of
from longspan.documents.folder import CALIBRATION, Folder, data_name
from longspan.documents.manifest import Facts, Layout, Manifest, Segment, Stored
from longspan.documents.state import state_bytes
from longspan.errors import DocumentError
from longspan.hf.hooks import Attachment
from longspan.machine.parts import read_into

COPIED_AT_ONCE = 2**24  # bytes that are copied at a time


class SavableDocument(Protocol):
    """A document, as far as saving reads and changes it."""

    model: PreTrainedModel
    tokenizer: Any
    contents: Contents
    prefill_chunk: int
    layout: Layout
    source: str | None

    def attachment(self) -> Attachment: ...


def save_document(
    document: SavableDocument, path: str | os.PathLike[str], saved: tuple[str, Manifest] | None
) -> tuple[str, Manifest]:
    """See ``Document.save``.

    Args:
        saved: the folder that the document is in already, and the manifest that it had there.

    Returns:
        the folder, and its manifest.
    """
    folder, attachment, contents = Folder(path), document.attachment(), document.contents
    if contents.foreign is not None:
        raise DocumentError("other weights than the model's read the text, which a manifest cannot say: read it again")
    before = saved[1] if saved is not None and saved[0] == str(folder) else None
    _refuse_taken(folder, before)
    facts = facts_of(
        document.model, document.tokenizer, attachment, contents,
        prefill_chunk=document.prefill_chunk, layout=document.layout, source=document.source,
    )  # fmt: skip
    folder.make()
    with folder.alone():
        _refuse_taken(folder, before)
        there = 0 if before is None else len(before.segments)
        data = list(contents.data)
        for n in range(there, len(contents.segments)):
            size = files_of_segments.size_of(contents.streams, contents.segments[n])
            with files_of_segments.naming(folder.path / data_name(n)), folder.open(data_name(n), write=True) as file:
                _copy(data[n].fileno(), file.fileno(), size)
            data[n] = folder.open(data_name(n))
        contents = replace(contents, data=tuple(data))
        manifest = write_rest(folder, facts, document.model, attachment, contents, before)
        document.contents = replace(contents, segments=manifest.segments)
    return str(folder), manifest


def write_rest(
    folder: Folder, facts: Facts, model: Any, attachment: Attachment, contents: Contents, before: Manifest | None = None
) -> Manifest:
    """Write all but the segments, whose bytes are in the folder, and the manifest last, in place of ``before``."""
    number = len(contents.segments) - 1
    pair = {"ids": contents.ids.to(torch.int32), "places": contents.places.to(torch.int32)}
    files: dict[str, Stored] = {}

    def write(name: str, data: bytes) -> None:
        files[name] = folder.write(name, data)

    write(f"tokens-{number:04}.safetensors", save({k: x.contiguous() for k, x in pair.items()}))
    write(f"state-{number:04}.safetensors", state_bytes(contents.state))
    if (text := contents.text) is not None:
        write(f"text-{number:04}.txt", text.encode("utf-8", "surrogatepass"))
    if before is not None and CALIBRATION in before.files:
        # Its maps are those of the model. The file has no number, so rewriting it would change the document before.
        files[CALIBRATION] = before.files[CALIBRATION]
    elif (calibration := attachment.attender.calibration) is not None:
        write(CALIBRATION, calibration.to_bytes())
    manifest = Manifest(
        facts, contents.streams, tuple(_sealed(contents)), files, make_canary(model, attachment, contents)
    )
    for n, file in enumerate(contents.data):
        with files_of_segments.naming(folder.path / data_name(n)):
            os.fsync(file.fileno())
    folder.finish(manifest)
    return manifest


def _sealed(contents: Contents) -> Iterable[Segment]:
    for segment, file in zip(contents.segments, contents.data, strict=True):
        done = all(span.sha256 for span in segment.spans)
        yield segment if done else files_of_segments.sealed(contents.streams, segment, file.fileno())


def _refuse_taken(folder: Folder, mine: Manifest | None) -> None:
    """Raise unless a folder is new or empty, or still holds the document that this one was."""
    if not folder.path.exists():
        if mine is not None:
            raise DocumentError(f"{folder}: the document that was here is gone; save it under another name")
        return
    if not folder.path.is_dir():
        raise DocumentError(f"{folder}: is a file; name a new folder")
    if mine is not None:
        if folder.manifest() != mine:
            raise DocumentError(f"{folder}: another process changed the document here; save yours under another name")
        return
    if folder.has_document():
        raise DocumentError(f"{folder}: this folder already holds a document; save this one under another name")
    if folder.unfinished() is not None:
        raise DocumentError(f"{folder}: holds an unfinished reading; name a new folder")
    others = folder.strange()
    if others:
        raise DocumentError(f"{folder}: holds {others[0]}, which does not belong to a document; name a new folder")


def _copy(source: int, target: int, size: int) -> None:
    """Copy bytes; holes stay holes, if the system can tell."""
    os.ftruncate(target, size)
    at, room = 0, memoryview(bytearray(min(size, COPIED_AT_ONCE)))
    while at < size:
        if hasattr(os, "SEEK_DATA"):
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only zeros follow
                    break
                # A file system that cannot tell: the bytes are read, zeros or not.
        own = room[: min(len(room), size - at)]
        read_into(source, at, own)
        files_of_segments.write_at(target, at, own)
        at += len(own)
    os.fsync(target)
