"""All that is kept of a text that a model has read, in the process that has it open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents import segments as files_of_segments
from longspan.documents.encoded import Encoded, InMemory
from longspan.documents.layout import encode_text
from longspan.documents.manifest import Segment, Source, Stream
from longspan.documents.state import State
from longspan.documents.streams import new_cache
from longspan.errors import DocumentError
from longspan.hf.attach import attachment_of
from longspan.hf.cache import LongspanCache
from longspan.hf.hooks import Attachment
from longspan.machine.parts import Part
from longspan.model.parallel import split_reason

NOWHERE = (-1, -1)  # the place of a token that is not of the text
_BETWEEN = "\n\n"  # between two texts of one document


@dataclass(frozen=True)
class Contents:
    """Tokens and what the model made of them. It never changes: a longer text is another one that shares the files.

    Attributes:
        encoded: the tokens and the text. sources: which characters came from where.
        streams, segments: what was kept of the tokens. data: the open file of each segment.
        state: what is small.
        kv: ``exact``, or ``int8`` if keys and values are kept in int8.
        foreign: how far what other weights read is from what the model's would have; None if its own read it.
    """

    encoded: Encoded = field(default_factory=InMemory)
    sources: tuple[Source, ...] = ()
    streams: tuple[Stream, ...] = ()
    segments: tuple[Segment, ...] = ()
    data: tuple[Any, ...] = ()
    state: State = field(default_factory=State)
    kv: str = "exact"
    foreign: float | None = None

    @property
    def length(self) -> int:
        """How many tokens it has, those that are not read yet among them."""
        return self.encoded.length

    @property
    def ids(self) -> Tensor:
        """The token ids, ``[T]`` int64."""
        return self.encoded.ids

    @property
    def places(self) -> Tensor:
        """``[T, 2]`` int64, the characters of each token in the text; ``NOWHERE`` of other tokens."""
        return self.encoded.places

    @property
    def text(self) -> str | None:
        return self.encoded.text

    @property
    def tokens(self) -> int:
        """How many the segments hold."""
        return self.segments[-1].stop if self.segments else 0

    def parts(self) -> list[list[Part]]:
        """Where each stream lies, in the order of its entries."""
        found: list[list[Part]] = [[] for _ in self.streams]
        for segment, file in zip(self.segments, self.data, strict=True):
            for own, part in zip(found, files_of_segments.parts(self.streams, segment, file.fileno()), strict=False):
                own.append(part)
        return found

    def cache(self, model: PreTrainedModel, attachment: Attachment) -> LongspanCache:
        """A cache that holds these tokens and belongs to whoever asks for it; see ``check_files``."""
        self.check_files()
        laid = self.streams, self.parts(), self.segments
        return new_cache(attachment, model.device, *laid, self.state, self.tokens)

    def close(self) -> None:
        """Close the files; nothing can be answered from them then."""
        for file in self.data:
            file.close()
        self.encoded.close()

    def check_files(self) -> None:
        """Raise ``DocumentError`` if a file was cut short since it was opened: the system ends who reads beyond it."""
        for segment, file in zip(self.segments, self.data, strict=True):
            size, wanted = os.fstat(file.fileno()).st_size, files_of_segments.size_of(self.streams, segment)
            if size < wanted:
                raise DocumentError(
                    f"a file of the document has {size:,} bytes instead of {wanted:,}: it was truncated; "
                    "read the text again"
                )

    def with_text(self, ids: Tensor, places: Tensor, text: str, sources: Sequence[Source]) -> Contents:
        """The same with further tokens, whose places and sources are counted in their own text.

        Args:
            ids: ``[T]`` int64.
            places: ``[T, 2]`` int64.
            text: left out if the text before it was not kept.

        Raises:
            DocumentError: the name of a source is no string, which no manifest could be read back with.
        """
        for one in sources:
            check_name(one.name)
        past = len(self.text) if self.text is not None else max((s.stop for s in self.sources), default=0)
        moved = torch.where(places >= 0, places + past, places)
        both = None if self.text is None else self.text + text
        more = (replace(s, start=s.start + past, stop=s.stop + past) for s in sources)
        return replace(
            self,
            encoded=InMemory(torch.cat((self.ids, ids)), torch.cat((self.places, moved)), both),
            sources=(*self.sources, *more),
        )


def with_texts(contents: Contents, tokenizer: Any, texts: Sequence[tuple[str, str]]) -> Contents:
    """``contents`` with further texts, each a name and a text, and two line breaks before each but a first one."""
    for name, text in texts:
        joint = _BETWEEN if contents.sources else ""
        ids, places = encode_text(tokenizer, text, joint)
        source = Source(name, len(joint), len(joint) + len(text))
        contents = contents.with_text(ids, places, joint + text, [source])
    return contents


def check_name(source: object) -> None:
    """Raise ``DocumentError`` unless what names a text's or a model's source is a string."""
    if not isinstance(source, str):
        raise DocumentError(f"source must be a string, not {source!r:.80}; for a path pass str(path)")


def check_tokens(model: PreTrainedModel, ids: Tensor) -> None:
    """Raise ``DocumentError`` unless there are ids ``[T]``, and all are tokens of the model."""
    if ids.dim() != 1 or not len(ids):
        raise DocumentError(
            f"the tokens must be [T], T ≥ 1, not {list(ids.shape)}; the tokenizer may have dropped the whole text"
        )
    known = model.get_input_embeddings().num_embeddings
    if wrong := ids[(ids < 0) | (ids >= known)].tolist():
        raise DocumentError(
            f"this tokenizer gives token {wrong[0]:,}, but the model has only {known:,} tokens; "
            "use the tokenizer of the model"
        )


def attached(model: PreTrainedModel) -> Attachment:
    """The attachment of a model that is to answer.

    Raises:
        DocumentError: nothing is, or the model cannot write.
    """
    found = attachment_of(model)
    if found is None:
        raise DocumentError("the model is not extended: call longspan.extend(model, ...) with the document's method")
    if not model.can_generate():
        raise DocumentError(
            f"{type(model).__name__} is a decoder without a language-model head and cannot write answers; load the "
            "complete model (AutoModelForCausalLM)"
        )
    if (reason := split_reason(model)) is not None:
        raise DocumentError(
            f"{reason}, but a document holds the keys and values of all heads; read, open and serve documents with "
            "a model in one process (device_map may spread its layers over devices)"
        )
    return found
