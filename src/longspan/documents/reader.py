"""``longspan.read``: let a model read a text, and keep what it made of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from longspan.calibration import Calibration
from longspan.documents.contents import NOWHERE, Contents, attached, check_name, check_tokens, with_texts
from longspan.documents.document import Document
from longspan.documents.encoded import InMemory
from longspan.documents.facts import difference, facts_of, layout_for
from longspan.documents.folder import Folder
from longspan.documents.layout import check_tokenizer, head_of
from longspan.documents.manifest import KV, Facts
from longspan.documents.method import method_of
from longspan.documents.reading import PREFILL_CHUNK, Done, Unnamed, prefill_chunks
from longspan.documents.saving import write_rest
from longspan.documents.streams import refuse_layers
from longspan.documents.unfinished import Reading
from longspan.errors import DocumentError, check_count
from longspan.hf import extend, restore
from longspan.hf.attach import attachment_of
from longspan.hf.hooks import Attachment
from longspan.memory import KVTier
from longspan.memory.quantised import BLOCK
from longspan.methods import DCA, Method
from longspan.methods.parse import written
from longspan.model.auto import tell
from longspan.model.unwrap import runnable
from longspan.model.window import window_of
from longspan.rope import Angles

_ROOM = 4096  # tokens of questions and answers that methods reach beyond the text


def read(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str | Sequence[tuple[str, str]],
    *,
    method: str | Method | Angles | None = None,
    window: int | None = None,
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
    layout: str = "auto",
    system: str = "",
    prefill_chunk: int = PREFILL_CHUNK,
    keep_text: bool = True,
    kv: str = "exact",
    out: str | os.PathLike[str] | None = None,
    source: str | None = None,
    done: Done | None = None,
) -> Document:
    """Let a model read a text of any length once, to ask it about that many times.

    Keys and values go to a file as they are made, so the text may be larger than memory.

    Examples:
        >>> doc = longspan.read(model, tokenizer, open("book.txt").read())
        >>> print(doc.ask("Who is the narrator?").text)
        >>> doc.save("book.longspan")

    Args:
        text: what to read, or several ``(name, text)``, read in turn with an empty line between.
        method, window, calibration, kv_tier, kv_dir: as of ``longspan.extend``. A model that is extended is left as it
            is, and then these are not given. One that is not is extended, by default with ``"auto"``. A document has no
            length limit, so for a text inside the window that is ``dca``, which equals the stock model there, and not
            ``full``. In a folder with a document or an unfinished reading it is the method of that.
        length: tokens of the text, a question and its answer, for methods that have to know how far to reach; 4,096
            more than the text has unless given.
        layout: where text and question stand: ``"chat"``, ``"instructed"``, ``"quoted"``, ``"plain"``, a text with
            ``{document}`` and ``{question}``, or ``"auto"``: ``"quoted"`` if the tokenizer has a chat template.
        system: a system prompt, which the chat template puts before the text; none if empty.
        prefill_chunk: tokens that are read at a time.
        keep_text: whether the text itself is kept too, so that passages of it can be shown.
        kv: ``"exact"``, or ``"int8"`` to keep keys and values in int8, at half the size of bf16: each number is off by
            at most 1/254 of the largest of its channel in 64 tokens (keys) or of its token and head (values). The
            method's index and the tokens of a question are exact.
        out: the folder to keep it in from the first prefill chunk on. A reading that was broken off there goes on from
            its last whole prefill chunk; one that is done is opened.
        source: what `longspan ask` loads the model from; where this one was loaded from unless given.
        done: told after every prefill chunk how many tokens were read, of how many.

    Raises:
        DocumentError: the text is empty or longer than the method is set for, ``out`` holds something else, the model
            is extended otherwise than asked, or a layer keeps a state in place of tokens. Whatever is raised, a model
            that was not extended is not.
        LongspanError: see ``longspan.extend``.
    """
    steps = begin(
        model, tokenizer, text,
        method=method, window=window, calibration=calibration, kv_tier=kv_tier, kv_dir=kv_dir, length=length,
        layout=layout, system=system, prefill_chunk=prefill_chunk, keep_text=keep_text, kv=kv, out=out, source=source,
    )  # fmt: skip
    with closing(steps):  # if ``done`` raises: what holds its traceback is not to hold the folder
        while True:
            try:
                read_so_far, total = next(steps)
            except StopIteration as end:
                document: Document = end.value
                return document
            if done is not None:
                done(read_so_far, total)


Steps = Generator[tuple[int, int], None, Document]
"""A reading by prefill chunks: after each it gives tokens read, of how many, and at its end the document."""


def begin(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str | Sequence[tuple[str, str]],
    *,
    method: str | Method | Angles | None = None,
    window: int | None = None,
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
    layout: str = "auto",
    system: str = "",
    prefill_chunk: int = PREFILL_CHUNK,
    keep_text: bool = True,
    kv: str = "exact",
    out: str | os.PathLike[str] | None = None,
    source: str | None = None,
) -> Steps:
    """``read``, up to where the model begins: the text is encoded, and each step reads a prefill chunk.

    For who has other work between two prefill chunks. The steps hold the folder until they end or are closed.
    """
    model = runnable(model)
    check_tokenizer(tokenizer)
    prefill_chunk = check_count("prefill_chunk", prefill_chunk)
    _check_kv(kv, prefill_chunk)
    if source is not None:
        check_name(source)
    folder = None if out is None else Folder(out)
    if folder is not None and folder.path.exists() and not folder.path.is_dir():
        raise DocumentError(f"{folder}: is a file; name a new folder")
    texts = _texts(text)
    if not any(own for _, own in texts):
        raise DocumentError("the text is empty, so there is nothing to read")
    chosen_layout = layout_for(tokenizer, layout, folder, system)
    head = head_of(tokenizer, chosen_layout)
    contents = _encoded(tokenizer, texts, head, keep_text, kv)
    check_tokens(model, contents.ids[0 if contents.length > len(head) else len(head) :])
    options = {"window": window, "calibration": calibration, "kv_tier": kv_tier, "kv_dir": kv_dir, "length": length}
    document = partial(Document, model, tokenizer, layout=chosen_layout, prefill_chunk=prefill_chunk)
    before = attachment_of(model)
    with _left_as(model, before):
        _attach(model, method, contents.length, options, folder)
        attachment = attached(model)
        refuse_layers(attachment.new_cache())  # before a prefill chunk is computed and a folder made
        if folder is None:
            steps = _unnamed_steps(document, model, attachment, contents, prefill_chunk, source)
        else:
            facts = facts_of(
                model, tokenizer, attachment, contents, prefill_chunk=prefill_chunk, layout=chosen_layout, source=source
            )
            steps = _steps(document, model, tokenizer, attachment, contents, folder, facts)
    return _undone(model, before, steps)


@contextmanager
def _left_as(model: PreTrainedModel, before: Attachment | None) -> Iterator[None]:
    """Restore a model that this block has extended if the block fails, so that the call can be made again."""
    try:
        yield
    except BaseException:
        if before is None and attachment_of(model) is not None:
            restore(model)
        raise


def _undone(model: PreTrainedModel, before: Attachment | None, steps: Steps) -> Steps:
    """The steps, after which the model is as it was ``before`` them if they fail or are closed."""
    with _left_as(model, before):
        return (yield from steps)


def _unnamed_steps(
    document: Callable[..., Document],
    model: PreTrainedModel,
    attachment: Attachment,
    contents: Contents,
    prefill_chunk: int,
    source: str | None,
) -> Steps:
    for longer in prefill_chunks(model, attachment, contents, prefill_chunk, Unnamed(attachment.report.kv_dir)):
        contents = longer
        yield contents.tokens, contents.length
    return document(contents, source=source)


def _steps(
    document: Callable[..., Document],
    model: PreTrainedModel,
    tokenizer: Any,
    attachment: Attachment,
    contents: Contents,
    folder: Folder,
    facts: Facts,
) -> Steps:
    if folder.has_document():
        return _opened(folder, facts, model, tokenizer)
    folder.make()
    with folder.alone():
        if folder.has_document():  # another process has finished it meanwhile
            return _opened(folder, facts, model, tokenizer)
        if strange := folder.strange():
            raise DocumentError(f"{folder}: holds {strange[0]}, which does not belong to a document; name a new folder")
        reading = Reading(folder, facts)
        contents = reading.taken_up(contents)
        for longer in prefill_chunks(model, attachment, contents, facts.prefill_chunk, reading):
            contents = longer
            yield contents.tokens, contents.length
        manifest = write_rest(folder, facts, model, attachment, contents)
    contents = replace(contents, segments=manifest.segments)
    return document(contents, source=facts.source, saved=(str(folder), manifest))


def _check_kv(kv: str, prefill_chunk: int) -> None:
    if kv not in KV:
        raise DocumentError(f"kv must be one of {', '.join(KV)}, not {kv!r:.80}")
    if kv == "int8" and prefill_chunk % BLOCK:
        raise DocumentError(
            f"kv='int8' keeps keys in blocks of {BLOCK} tokens, and prefill_chunk={prefill_chunk} would cut one; "
            f"give a multiple of {BLOCK}"
        )


def _texts(text: Any) -> list[tuple[str, str]]:
    """The name and text of each part; one text has no name."""
    if isinstance(text, os.PathLike) or (isinstance(text, str) and _is_file(text)):
        raise DocumentError(f"read takes a text, and {str(text)!r} is a file; pass Path({str(text)!r}).read_text()")
    parts = [("", text)] if isinstance(text, str) else list(text) if isinstance(text, (list, tuple)) else None
    pairs = parts is not None and all(isinstance(part, tuple) and len(part) == 2 for part in parts)
    if parts is None or not pairs or not all(isinstance(one, str) for part in parts for one in part):
        raise DocumentError(f"text must be a string or a list of (name, text) tuples of strings, not {text!r:.80}")
    return parts


def _is_file(text: str) -> bool:
    with suppress(OSError, ValueError):  # too long for a name, or with characters that none has
        return len(text) < 4096 and Path(text).is_file()
    return False


def _attach(model: PreTrainedModel, method: Any, tokens: int, options: dict[str, Any], folder: Folder | None) -> None:
    """Extend a model that is not for a text of so many tokens, or refuse options for one that is."""
    given = {name: value for name, value in options.items() if value is not None and value != "device"}
    if attachment_of(model) is not None:
        if method is not None or given:
            names = ", ".join(["method", *given] if method is not None else given)
            raise DocumentError(
                f"the model is already extended, and {names} would change that; leave them out, or call "
                "longspan.restore(model) first"
            )
        _refuse_longer(model, tokens)
        return
    length = tokens + _ROOM if options["length"] is None else check_count("length", options["length"])
    if length < tokens:
        raise DocumentError(
            f"the text has {tokens:,} tokens, more than length={length:,}, which counts text, question and answer; "
            "give a larger length, or leave it out"
        )
    words = None
    if method is None or method == "auto":
        method, more, words = _automatic(model, length, options, folder)
        options = {**options, **more}
        if method == "auto" and options["length"] is None:
            words = f"that is {tokens:,} tokens of the text and {_ROOM:,} for questions and answers"
    extend(model, method, **{**options, "length": length})
    if words is not None:
        tell(words)
    _refuse_longer(model, tokens)


def _automatic(
    model: PreTrainedModel, length: int, options: dict[str, Any], folder: Folder | None
) -> tuple[str | Method, dict[str, Any], str | None]:
    """What ``"auto"`` is for a document, options that differ, and the reason for ``dca``.

    The choice depends on the memory that is free, so what was begun in a folder goes on as it was begun.
    """
    if folder is not None:
        begun = folder.manifest() if folder.has_document() else folder.unfinished()
        if begun is not None:
            method, facts = method_of(begun.facts), begun.facts
            more: dict[str, Any] = {"window": facts.window if options["window"] is None else options["window"]}
            more |= {} if facts.calibration_sha256 else {"calibration": None}
            return method, more, None
    window = window_of(model) if options["window"] is None else check_count("window", options["window"])
    if length > window:
        return "auto", {}, None
    fits = f"{length:,} tokens fit the window of {window:,}, in which dca changes nothing; unlike full it has no limit"
    return DCA(), {"calibration": None}, f"dca: {fits}"


def _refuse_longer(model: PreTrainedModel, tokens: int) -> None:
    """Raise ``DocumentError`` if a text has more tokens than the model's method was set for."""
    report = attached(model).report
    most = report.method.longest(report.window)
    if most is not None and tokens > most:
        raise DocumentError(
            f"the text has {tokens:,} tokens, and {written(report.method)} was set for {most:,}; extend the model for "
            "a larger length, leave out the parameter that sets it, or take another method"
        )


def _encoded(
    tokenizer: Any, texts: Sequence[tuple[str, str]], head: torch.Tensor, keep_text: bool, kv: str
) -> Contents:
    """The tokens of what stands before the texts and of those, with nothing read yet."""
    places = torch.tensor([NOWHERE] * len(head)).view(-1, 2)
    contents = Contents(InMemory(text="" if keep_text else None), kv=kv).with_text(head, places, "", [])
    return with_texts(contents, tokenizer, texts)


def _opened(folder: Folder, facts: Facts, model: PreTrainedModel, tokenizer: Any) -> Document:
    """The document that is in a folder already; raises ``DocumentError`` if it is not the one that ``facts`` say."""
    differs = difference(folder.manifest().facts, facts, besides={"machine", "longspan", "source"})
    if differs is not None:
        raise DocumentError(f"{folder}: this folder already holds a document of another {differs}; name a new folder")
    with suppress(DocumentError), folder.alone():  # unless another process appends to it
        folder.drop_finished()
    return Document.open(folder.path, model, tokenizer)
