"""A text that a model has read: asked, added to, kept in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.calibration import same_maps
from longspan.documents.asking import Answer, Stream, answer
from longspan.documents.contents import NOWHERE, Contents, attached, check_tokens, with_texts
from longspan.documents.layout import check_tokenizer, encode
from longspan.documents.manifest import Layout, Manifest, Source
from longspan.documents.opening import open_document
from longspan.documents.passages import NEUTRAL, Attended, weigh
from longspan.documents.reading import Done, Unnamed, read_on
from longspan.documents.saving import save_document
from longspan.documents.units import Units, units_of
from longspan.documents.writing import refuse_options
from longspan.errors import DocumentError, check_count
from longspan.hf.cache import LongspanCache
from longspan.hf.drafting import Draft
from longspan.hf.hooks import Attachment
from longspan.methods.parse import written
from longspan.model.unwrap import runnable
from longspan.text.detokenize import tokens_of
from longspan.text.ends import before_end, end_tokens

_LAST = 8  # tokens of a neutral question whose attention is taken: those that an answer follows


def check_question(question: object) -> None:
    """Raise ``DocumentError`` unless it is a text with something in it."""
    if not isinstance(question, str):
        raise DocumentError(f"the question must be a string, not {question!r:.80}")
    if not question.strip():
        raise DocumentError("the question is empty")


class Document:
    """A text that a model has read once and answers questions about; made by ``longspan.read`` or ``Document.open``.

    A question never changes it: each has keys and values of its own behind those of the text, which are mapped from
    files. Several threads may ask one document, and several processes one folder.

    Attributes:
        model, tokenizer: that read it.
        contents: the tokens, and what was kept of them.
        layout: what stands around the text.
        prefill_chunk: tokens that are read at a time.
        path: the folder that it was opened from or saved to; None if there is none. It has what was appended since
            after ``save``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        contents: Contents,
        *,
        layout: Layout,
        prefill_chunk: int,
        source: str | None = None,
        saved: tuple[str, Manifest] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.contents = model, tokenizer, contents
        self.layout, self.prefill_chunk, self.source = layout, prefill_chunk, source
        attender = attached(model).attender
        self._read_under = attender.method, attender.window, attender.calibration
        self._saved = saved
        self._weighed: tuple[Contents, Units, Tensor] | None = None  # the contents' units, and their neutral weights

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        verify: bool = False,
        kv_tier: str = "device",
        other_weights: bool = False,
        draft: Draft | None = None,
    ) -> Document:
        """Open what ``save`` wrote; nothing of the keys and values is read yet.

        Everything that the manifest says is checked against this model and tokenizer first, and the model says again
        what it said when the text was read.

        Args:
            model: extended with the document's method, or not extended; then it is, as the document says.
            verify: read all of it, and compare every checksum.
            kv_tier: as of ``longspan.extend``, for a model that is not extended.
            other_weights: take a document that other weights of this model read, such as another quantisation. A
                warning says how far its keys and values are from those of these weights. It cannot be saved.
            draft: as of ``longspan.extend``, for a model that is not extended.

        Raises:
            DocumentError: it is not there, damaged, or of another model, tokenizer or method; one line for each.
        """
        model = runnable(model)
        check_tokenizer(tokenizer)
        folder, manifest, contents = open_document(
            path, model, tokenizer, verify=verify, kv_tier=kv_tier, other_weights=other_weights,
            draft=draft,
        )  # fmt: skip
        facts = manifest.facts
        return cls(
            model, tokenizer, contents,
            layout=facts.layout, prefill_chunk=facts.prefill_chunk, source=facts.source, saved=(folder, manifest),
        )  # fmt: skip

    @property
    def path(self) -> str | None:
        return self._saved[0] if self._saved is not None else None

    @property
    def tokens(self) -> int:
        """How many it has, those that stand before the text counted in."""
        return self.contents.length

    @property
    def text(self) -> str | None:
        """The text read; None if it was not kept."""
        return self.contents.text

    def __repr__(self) -> str:
        method, where = self._read_under[0].name, self.path or "not saved"
        if self._saved is not None and self.tokens > self._saved[1].facts.tokens:
            where += f" but for the last {self.tokens - self._saved[1].facts.tokens:,} tokens, which are not saved"
        return f"<Document: {self.tokens:,} tokens under {method}, {where}>"

    def ask(
        self,
        question: str,
        max_new_tokens: int = 200,
        *,
        passages: bool = False,
        stream: Stream | None = None,
        **options: Any,
    ) -> Answer:
        """Answer a question about the text. The document stays as it is.

        Args:
            max_new_tokens: length of the answer at most.
            passages: also say which sentences of the text the answer's tokens attended to most, compared with a
                neutral question; see ``longspan.documents.passages``. It costs about as much as the answer.
            stream: called with the answer's text as it comes.
            options: of transformers' ``generate``, such as ``do_sample=True``; greedy unless given. Each of
                ``stop_strings`` ends the answer before it. ``seed`` makes a sampled answer the same each time,
                unless another thread samples meanwhile. Beams and assisted decoding are refused.

        Raises:
            DocumentError: the model runs another method now, the question is empty, or an option cannot be.
        """
        if passages:
            return self.ask_attended(question, max_new_tokens, stream=stream, **options)[0]
        return self.go_on(self.prompt(question), max_new_tokens, stream=stream, **options)

    def ask_attended(
        self, question: str, max_new_tokens: int = 200, *, stream: Stream | None = None, **options: Any
    ) -> tuple[Answer, Attended]:
        """``ask`` with passages, and the attention of each token of the answer."""
        ids, cache = self.prompt(question), self.cache()
        reply = self.go_on(ids, max_new_tokens, cache=cache, stream=stream, **options)
        own = cache if self.go_back(cache, len(ids) - 1) else None
        attended = self.attended(ids, reply.tokens, reply.text, own)
        return replace(reply, passages=attended.passages()), attended

    def go_back(self, cache: LongspanCache, tokens: int, least: int = 0) -> bool:
        """Take a cache back to at most ``tokens`` tokens if the document's and ``least`` stay; whether it went back."""
        held = cache.croppable(tokens)
        if held < max(self.tokens, least):
            return False
        cache.crop(held)
        return True

    def attended(
        self, ids: Tensor, answer: Sequence[int], text: str | None = None, cache: LongspanCache | None = None
    ) -> Attended:
        """The attention of an answer's tokens to the text.

        Args:
            ids: ``[T]`` int64, what the answer follows; it begins with the document's tokens.
            answer: the ids of the answer, at least one.
            text: what of the answer is shown, if a stop string may have cut it; all its tokens unless given.
            cache: holds some of ``ids``, at least the document's and not the last; one of its own unless given.

        Raises:
            DocumentError: see ``ask``; or ``ids`` do not begin with the document's.
        """
        attachment = self.attachment()
        self._check_begins(ids)
        if not answer:
            raise DocumentError("an answer without tokens attends to nothing")
        if self._weighed is None or self._weighed[0] is not self.contents:
            units, question = units_of(self.contents), self.prompt(NEUTRAL)[self.tokens :]
            self._refuse_beyond(self.tokens + len(question))
            rows = min(_LAST, len(question))
            neutral = weigh(self.model, attachment, self.cache(), question, question[:0], units, rows).mean(dim=0)
            self._weighed = self.contents, units, neutral
        contents, units, neutral = self._weighed
        cache = self.cache() if cache is None else cache
        tokens, rest = torch.tensor(answer, dtype=torch.int64), ids[cache.get_seq_length() :]
        weights = weigh(self.model, attachment, cache, rest, tokens[:-1], units)
        shown = before_end(answer, end_tokens(self.model))
        count = len(shown) if text is None else tokens_of(self.tokenizer, shown, len(text))
        return Attended(contents, units, weights, neutral, count)

    def prompt(self, question: str) -> Tensor:
        """The ids of the text and a question after it, ``[T]``."""
        check_question(question)
        return torch.cat((self.contents.ids, encode(self.tokenizer, f"{self.layout.joint}{question}{self.layout.end}")))

    def go_on(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        cache: LongspanCache | None = None,
        stream: Stream | None = None,
        **options: Any,
    ) -> Answer:
        """Write after ``ids`` ``[T]``, which begin with the document's own.

        Args:
            cache: holds the first of them, at least the document's; one of its own unless given.
        """
        attachment, limit = self.attachment(), check_count("max_new_tokens", max_new_tokens)
        self._check_begins(ids)
        check_tokens(self.model, ids[self.tokens :])
        self._refuse_beyond(len(ids) + limit)
        refuse_options(options)
        if cache is not None:  # it shows the same files
            self.contents.check_files()
        else:
            cache = self.contents.cache(self.model, attachment)
        return answer(
            self.model, self.tokenizer, cache, ids, max_new_tokens=limit, stream=stream, options=options
        )  # fmt: skip

    def _check_begins(self, ids: Tensor) -> None:
        if not torch.equal(ids[: self.tokens], self.contents.ids) or len(ids) <= self.tokens:
            raise DocumentError("the tokens of a question must begin with those of the document")

    def append(self, text: str, *, source: str = "", done: Done | None = None) -> None:
        """Let the model read another text, after an empty line. The saved document changes with ``save`` alone.

        That line (two line breaks) stands between any two texts of a document, however they were added;
        ``append_tokens`` adds what it is given and nothing else.

        Args:
            source: where it is from, for passages.
            done: told after every prefill chunk how many tokens were read, of how many.
        """
        if not text:
            raise DocumentError("there is no text to append")
        self._read(with_texts(self.contents, self.tokenizer, [(source, text)]), done)

    def append_tokens(self, ids: Tensor, *, source: str = "") -> None:
        """Let the model read the tokens ``ids`` ``[T]`` and nothing before them; the text has them decoded."""
        check_tokens(self.model, ids)
        text = self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        places = torch.tensor(NOWHERE).expand(len(ids), 2)
        self._read(self.contents.with_text(ids, places, text, [Source(source, 0, len(text))]), None)

    def _read(self, longer: Contents, done: Done | None) -> None:
        attachment = self.attachment()
        check_tokens(self.model, longer.ids[self.tokens :])
        self.refuse_longer(longer)
        self.contents = read_on(
            self.model, attachment, longer, self.prefill_chunk, Unnamed(attachment.report.kv_dir), done
        )

    def refuse_longer(self, longer: Contents) -> None:
        """Raise ``DocumentError`` if contents are longer than the method was set for when the text was read."""
        most, why = self._reach()
        if most is not None and longer.length > most:
            raise DocumentError(
                f"the document would have {longer.length:,} tokens, and {why} when it was read; read all of the text "
                "into a new document"
            )

    def _refuse_beyond(self, tokens: int) -> None:
        """Raise ``DocumentError`` if text, question and answer are longer than the method was set for."""
        most, why = self._reach()
        if most is not None and tokens > most:
            raise DocumentError(
                f"text, question and answer have up to {tokens:,} tokens, and {why}; ask for a shorter answer "
                "(max_new_tokens), or read the text again for a larger length"
            )

    def _reach(self) -> tuple[int | None, str]:
        """How many tokens the method was set for, None if it knows no limit; and that in words."""
        report = self.attachment().report
        method, window = report.method, report.window
        most = method.longest(window)
        if most is None and not (method.extends or method.angles.dynamic) and self.tokens <= window:
            # A longer text under full attention is the control of an experiment; an append is not meant as one.
            most = window
        return most, "" if most is None else f"{written(method)} was set for {most:,}"

    def cache(self) -> LongspanCache:
        """A cache of its own that holds the document's tokens."""
        return self.contents.cache(self.model, self.attachment())

    def fork(self) -> Document:
        """Another document of the same tokens, which shares their bytes; text appended to one stays there."""
        twin = Document(
            self.model, self.tokenizer, self.contents,
            layout=self.layout, prefill_chunk=self.prefill_chunk, source=self.source,
        )  # fmt: skip
        twin._read_under = self._read_under
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a folder that is new or empty, or what was appended to the folder that it is in already.

        Whatever happens meanwhile, the folder has the document before or the one after.

        Raises:
            DocumentError: another document is there, or somebody changed this one. OSError: it cannot be written.
        """
        self._saved = save_document(self, path, self._saved)

    def attachment(self) -> Attachment:
        """The attachment of the model, under which the text was read.

        Raises:
            DocumentError: it is something else.
        """
        attachment = attached(self.model)
        method, window, calibration = self._read_under
        now = attachment.attender.method, attachment.attender.window
        if now != (method, window):
            raise DocumentError(
                f"the text was read under {written(method)} at a window of {window}, but the model now runs "
                f"{written(now[0])} at {now[1]}; extend the model with the earlier method again"
            )
        if not same_maps(calibration, attachment.attender.calibration):
            raise DocumentError(
                "the text was read under another calibration than the model now has; extend the model with the earlier "
                "calibration again"
            )
        return attachment
