"""Open a document: everything that it says is checked first, and of its keys and values next to nothing is read."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.calibration import Calibration
from longspan.documents import segments as files_of_segments
from longspan.documents.canary import check_canary
from longspan.documents.contents import Contents, attached
from longspan.documents.encoded import InFiles
from longspan.documents.facts import facts_of, method_of, refuse_others
from longspan.documents.folder import CALIBRATION, Folder, data_name, open_data, state_from
from longspan.documents.manifest import Manifest
from longspan.errors import DocumentError, LongspanError
from longspan.hf import extend, restore
from longspan.hf.attach import attachment_of

_TRIES = 3  # somebody may append while the files of the manifest before are read


def open_document(
    path: str | os.PathLike[str], model: PreTrainedModel, tokenizer: Any, *, verify: bool, kv_tier: str
) -> tuple[str, Manifest, Contents]:
    """The folder, manifest and contents of a saved document, checked; see ``Document.open``."""
    folder = Folder(path)
    manifest, contents = load(folder, verify=verify)
    before = attachment_of(model)
    with ExitStack() as undo:
        undo.callback(contents.close)
        if before is None:
            _extend(model, folder, manifest, kv_tier)
            undo.callback(restore, model)
        attachment = attached(model)
        live = facts_of(
            model,
            tokenizer,
            attachment,
            contents,
            prefill_chunk=manifest.facts.prefill_chunk,
            layout=manifest.facts.layout,
        )
        try:
            refuse_others(manifest.facts, live)
            same = manifest.facts.machine == live.machine
            assert manifest.canary is not None
            check_canary(model, attachment, contents, manifest.canary, same_machine=same)
        except DocumentError as error:
            raise DocumentError("\n".join(f"{folder}: {line}" for line in str(error).splitlines())) from None
        undo.pop_all()
    return str(folder), manifest, contents


def load(folder: Folder, *, verify: bool) -> tuple[Manifest, Contents]:
    """Contents of a folder, checked as far as possible without the model.

    Args:
        verify: read all segments, and compare their checksums.

    Raises:
        DocumentError: it is not there or damaged.
    """
    for tried in range(_TRIES):
        manifest = folder.manifest()
        try:
            return manifest, _load(folder, manifest, verify)
        except DocumentError:
            if tried == _TRIES - 1 or folder.manifest() == manifest:
                raise
    raise AssertionError


def _load(folder: Folder, manifest: Manifest, verify: bool) -> Contents:
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
    with ExitStack() as opened:  # closed if anything is refused
        data = []
        for n in range(len(manifest.segments)):
            data.append(opened.enter_context(open_data(folder, manifest, n)))
            _check(folder, manifest, n, data[n], verify=verify)
        size = sum(os.fstat(file.fileno()).st_size for file in data)
        encoded, name = InFiles(folder, manifest, data=size), f"state-{number:04}.safetensors"
        opened.callback(encoded.close)
        if verify:  # else they are read, and their checksums compared, when they are first needed
            _ = encoded.ids, encoded.text
        if CALIBRATION in names:
            folder.read(CALIBRATION, manifest.files[CALIBRATION])
        try:
            state = state_from(folder.read(name, manifest.files[name], data=size))
        except DocumentError as error:
            said = str(error)
            raise DocumentError(said if said.startswith(str(folder)) else f"{folder}: {name}: {said}") from None
        opened.pop_all()
    return Contents(encoded, facts.sources, manifest.streams, manifest.segments, tuple(data), state)


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


def _extend(model: PreTrainedModel, folder: Folder, manifest: Manifest, kv_tier: str) -> None:
    """Extend a model as a manifest says."""
    facts = manifest.facts
    try:
        method = method_of(facts)
    except DocumentError as error:
        raise DocumentError(f"{folder}: {error}") from None
    try:
        calibration = Calibration.load(Path(folder.path) / CALIBRATION) if facts.calibration_sha256 else None
        extend(model, method, window=facts.window, calibration=calibration, kv_tier=kv_tier)  # type: ignore[arg-type]
    except (LongspanError, ValueError) as error:
        raise DocumentError(f"{folder}: the model cannot be extended as the document requires: {error}") from None


def verify(path: str | os.PathLike[str]) -> Manifest:
    """Read every byte of a document and compare every checksum; takes no model.

    Raises:
        DocumentError: it is not there or damaged.
    """
    manifest, contents = load(Folder(path), verify=True)
    contents.close()
    return manifest
