"""Open a document: everything that it says is checked first, and of its keys and values next to nothing is read."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.calibration import Calibration
from longspan.documents.canary import check_canary
from longspan.documents.checking import opened_files, with_manifest
from longspan.documents.contents import Contents, attached
from longspan.documents.facts import facts_of, refuse_others
from longspan.documents.folder import CALIBRATION, Folder, placed
from longspan.documents.manifest import Manifest
from longspan.documents.method import method_of
from longspan.documents.other_weights import RELAXED, accept
from longspan.documents.state import state_from
from longspan.errors import DocumentError, LongspanError
from longspan.hf import extend, restore
from longspan.hf.attach import attachment_of
from longspan.hf.drafting import Draft


def open_document(
    path: str | os.PathLike[str],
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    verify: bool,
    kv_tier: str,
    other_weights: bool,
    draft: Draft | None,
) -> tuple[str, Manifest, Contents]:
    """The folder, manifest and contents of a saved document, checked; see ``Document.open``."""
    folder = Folder(placed(path))
    manifest, contents = with_manifest(folder, partial(_contents, verify=verify))
    before = attachment_of(model)
    with ExitStack() as undo:
        undo.callback(contents.close)
        if before is None:
            _extend(model, folder, manifest, kv_tier, draft)
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
            refuse_others(manifest.facts, live, RELAXED if other_weights else frozenset())
            if manifest.facts.weights_sha256 != live.weights_sha256:
                contents = replace(contents, foreign=accept(model, attachment, contents))
            else:
                same = manifest.facts.machine == live.machine
                assert manifest.canary is not None
                check_canary(model, attachment, contents, manifest.canary, same_machine=same)
        except DocumentError as error:
            raise DocumentError("\n".join(f"{folder}: {line}" for line in str(error).splitlines())) from None
        undo.pop_all()
    return str(folder), manifest, contents


def _contents(folder: Folder, manifest: Manifest, verify: bool) -> Contents:
    with ExitStack() as opened:  # closed if anything is refused
        data, encoded, state = opened_files(folder, manifest, state_from, opened, verify=verify)
        opened.pop_all()
    facts = manifest.facts
    return Contents(encoded, facts.sources, manifest.streams, manifest.segments, data, state, facts.kv)


def _extend(model: PreTrainedModel, folder: Folder, manifest: Manifest, kv_tier: str, draft: Draft | None) -> None:
    """Extend a model as a manifest says."""
    facts = manifest.facts
    try:
        method = method_of(facts)
    except DocumentError as error:
        raise DocumentError(f"{folder}: {error}") from None
    try:
        calibration = Calibration.load(Path(folder.path) / CALIBRATION) if facts.calibration_sha256 else None
        extend(
            model, method, window=facts.window, calibration=calibration, kv_tier=kv_tier,  # type: ignore[arg-type]
            draft=draft,
        )  # fmt: skip
    except (LongspanError, ValueError) as error:
        raise DocumentError(f"{folder}: the model cannot be extended as the document requires: {error}") from None
