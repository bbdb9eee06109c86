"""Append texts to the document in a folder: one that is stopped is taken up again, and nothing is appended twice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.documents.contents import Contents, check_tokens, with_texts
from longspan.documents.document import Document
from longspan.documents.facts import facts_of
from longspan.documents.folder import Folder, placed
from longspan.documents.reading import Done, read_on
from longspan.documents.saving import write_rest
from longspan.documents.unfinished import Reading
from longspan.errors import DocumentError


def append_texts(
    path: str | os.PathLike[str],
    model: PreTrainedModel,
    tokenizer: Any,
    texts: Sequence[tuple[str, str]],
    *,
    kv_tier: str = "device",
    done: Done | None = None,
) -> Document:
    """Let a model read texts after a saved document, each after an empty line, and keep them there.

    What was read is on the disk after every prefill chunk. The same call takes up an append that was stopped, and
    changes nothing if the document ends with these texts already: a process may end after it has replaced the
    manifest.

    Args:
        path: the document's folder, which has the document as it was until all of the texts are in it.
        texts: the name and text of each.
        done: told after every prefill chunk how many tokens were read, of how many.

    Raises:
        DocumentError: see ``Document.open``; the texts are empty, or an append of other texts was stopped here.
        OSError: a file cannot be written; what was kept before is there.
    """
    if not any(text for _, text in texts):
        raise DocumentError("there is no text to append")
    folder = Folder(placed(path))
    folder.manifest()  # raises if there is no document
    with folder.alone():
        document = Document.open(folder.path, model, tokenizer, kv_tier=kv_tier)
        before, contents, attachment = folder.manifest(), document.contents, document.attachment()
        folder.drop_finished()
        longer = with_texts(contents, tokenizer, texts)
        check_tokens(model, longer.ids[contents.length :])
        if _ends_alike(contents, longer):
            return document
        document.refuse_longer(longer)
        facts = facts_of(
            model,
            tokenizer,
            attachment,
            longer,
            prefill_chunk=document.prefill_chunk,
            layout=document.layout,
            source=document.source,
        )
        reading = Reading(folder, facts, before)
        longer = read_on(model, attachment, reading.taken_up(longer), document.prefill_chunk, reading, done)
        manifest = write_rest(folder, facts, model, attachment, longer, before)
    return Document(
        model, tokenizer, replace(longer, segments=manifest.segments),
        layout=document.layout, prefill_chunk=document.prefill_chunk, source=document.source,
        saved=(str(folder), manifest),
    )  # fmt: skip


def _ends_alike(contents: Contents, longer: Contents) -> bool:
    """Whether the end of a document is what ``longer`` adds to it: the same names, tokens and text."""
    tokens, texts = longer.length - contents.length, len(longer.sources) - len(contents.sources)
    lengths = [[(one.name, one.stop - one.start) for one in x.sources[-texts:]] for x in (contents, longer)]
    if lengths[0] != lengths[1] or not torch.equal(contents.ids[-tokens:], longer.ids[-tokens:]):
        return False
    if contents.text is None or longer.text is None:
        return True
    return contents.text.endswith(longer.text[len(contents.text) :])
