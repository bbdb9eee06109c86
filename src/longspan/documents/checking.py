"""Whether the files of a document are what was written, as far as this needs no model. Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from longspan.documents import segments as files_of_segments
from longspan.documents.encoded import InFiles
from longspan.documents.folder import CALIBRATION, Folder, data_name, open_data, placed
from longspan.documents.manifest import Manifest
from longspan.documents.state import check_state
from longspan.errors import DocumentError

_TRIES = 3  # somebody may append while the files of the manifest before are read
T = TypeVar("T")


def verify(path: str | os.PathLike[str]) -> Manifest:
    """Read every byte of a document and compare every checksum; takes no model.

    Raises:
        DocumentError: it is not there or damaged.
    """

    def whole(folder: Folder, manifest: Manifest) -> None:
        with ExitStack() as opened:
            opened_files(folder, manifest, check_state, opened, verify=True)

    return with_manifest(Folder(placed(path)), whole)[0]


def with_manifest(folder: Folder, use: Callable[[Folder, Manifest], T]) -> tuple[Manifest, T]:
    """The manifest of a folder, and what ``use`` makes of it and the files; again if somebody appends meanwhile.

    Raises:
        DocumentError: it is not there or damaged.
    """
    for tried in range(_TRIES):
        manifest = folder.manifest()
        try:
            return manifest, use(folder, manifest)
        except DocumentError:
            if tried == _TRIES - 1 or folder.manifest() == manifest:
                raise
    raise AssertionError


def opened_files(
    folder: Folder, manifest: Manifest, state: Callable[[bytes], T], opened: ExitStack, *, verify: bool
) -> tuple[tuple[Any, ...], InFiles, T]:
    """The open files of the segments, the tokens with their text, and the state.

    Args:
        state: makes it of the bytes of its file.
        opened: closes the files.
        verify: read everything, and compare all checksums; else tokens and text are checked when they are first needed.

    Raises:
        DocumentError: a file is damaged.
    """
    facts, number = manifest.facts, len(manifest.segments) - 1
    try:
        files_of_segments.check(manifest.streams, manifest.segments, facts.tokens)
        if manifest.canary is None:
            raise DocumentError("its manifest has no canary")
        names = {f"tokens-{number:04}.safetensors", f"state-{number:04}.safetensors"}
        names |= {f"text-{number:04}.txt"} if facts.keeps_text else set()
        names |= {CALIBRATION} if facts.calibration_sha256 else set()
        if manifest.files.keys() != names:
            raise DocumentError(f"its manifest names the files {sorted(manifest.files)}, not {sorted(names)}")
        if facts.keeps_text and facts.sources:
            end, size = facts.sources[-1].stop, manifest.files[f"text-{number:04}.txt"].size
            if end > size:  # a character has a byte at least
                raise DocumentError(f"its sources have {end:,} characters, and its text has {size:,} bytes")
    except DocumentError as error:
        raise DocumentError(f"{folder}: {error}; the manifest is damaged, read the text again") from None
    data = []
    for n in range(len(manifest.segments)):
        data.append(opened.enter_context(open_data(folder, manifest, n)))
        _check(folder, manifest, n, data[n], verify=verify)
    size = sum(os.fstat(file.fileno()).st_size for file in data)
    encoded, name = InFiles(folder, manifest, data=size), f"state-{number:04}.safetensors"
    opened.callback(encoded.close)
    if verify:
        encoded.check()
    if CALIBRATION in names:
        folder.read(CALIBRATION, manifest.files[CALIBRATION])
    try:
        return tuple(data), encoded, state(folder.read(name, manifest.files[name], data=size))
    except DocumentError as error:
        said = str(error)
        raise DocumentError(said if said.startswith(str(folder)) else f"{folder}: {name}: {said}") from None


def _check(folder: Folder, manifest: Manifest, number: int, file: Any, *, verify: bool) -> None:
    """Raise ``DocumentError`` unless the open file of a segment has its checksums."""
    segment = manifest.segments[number]
    own = files_of_segments.parts(manifest.streams, segment, file.fileno())
    for stream, span, part in zip(manifest.streams, segment.spans, own, strict=False):
        good = files_of_segments.edges(stream, part) == span.edges
        if not good or (verify and files_of_segments.whole(stream, part) != span.sha256):
            raise DocumentError(
                f"{folder}: {data_name(number)} is not what was written (the checksum of layer {stream.layer}, "
                f"{stream.name}, differs); read the text again"
            )
