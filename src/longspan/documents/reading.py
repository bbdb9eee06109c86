"""A model reads a text by prefill chunks, each from what is kept of those before, and keeps what it makes of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents import segments as files_of_segments
from longspan.documents.coding import Coder
from longspan.documents.contents import Contents
from longspan.documents.streams import state_of, streams_of
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.cache import LongspanCache
from longspan.hf.hooks import Attachment
from longspan.hf.logits import last_logits

PREFILL_CHUNK = 4096  # tokens that are read at a time unless said

Done = Callable[[int, int], None]
"""Told after every prefill chunk how many tokens were read, of how many."""


class Target(Protocol):
    """Where a segment that is being written lies."""

    def open(self, number: int) -> Any:
        """The file of this segment, empty, to read and write."""

    def keep(self, contents: Contents) -> None:
        """A whole prefill chunk is in the file: keep it so that a reading can be taken up from here."""

    def path(self, number: int) -> str:
        """The file of this segment in errors."""


class Unnamed:
    """A file without a name, which goes with the process: nothing is taken up again."""

    def __init__(self, directory: Any = None) -> None:
        self._directory = directory

    def open(self, number: int) -> Any:
        return tempfile.TemporaryFile(prefix="longspan-", dir=self._directory, buffering=0)

    def keep(self, contents: Contents) -> None:
        """Nothing is taken up again."""

    def path(self, number: int) -> str:
        return os.path.join(self._directory or tempfile.gettempdir(), "(a temporary file)")


@torch.inference_mode()
def prefill_chunks(
    model: PreTrainedModel, attachment: Attachment, contents: Contents, prefill_chunk: int, target: Target
) -> Iterator[Contents]:
    """Let the model read the ids of ``contents`` that its segments do not hold yet; yields after every prefill chunk.

    Every prefill chunk begins from what the files have, so a reading that was taken up again is the same to the bit.
    On a GPU whose cache is on the device, that is copied there before each of them: N² / (2 · prefill_chunk) tokens.

    Args:
        contents: its last segment may be one that ``target`` kept before all of its tokens were read.
    """
    total = contents.length
    while contents.tokens < total:
        begin = contents.tokens
        stop = min(_next(contents, prefill_chunk), total)
        cache = contents.cache(model, attachment)
        forward(model, contents.ids[begin:stop], cache)
        with files_of_segments.naming(target.path(max(len(contents.segments) - _open(contents), 0))):
            contents = keep_cache(contents, cache, total, stop, target)
            target.keep(contents)
        yield contents


def read_on(
    model: PreTrainedModel,
    attachment: Attachment,
    contents: Contents,
    prefill_chunk: int,
    target: Target,
    done: Done | None = None,
) -> Contents:
    """All of ``prefill_chunks``, into one more segment."""
    for longer in prefill_chunks(model, attachment, contents, prefill_chunk, target):
        contents = longer
        if done is not None:
            done(contents.tokens, contents.length)
    return contents


def _next(contents: Contents, prefill_chunk: int) -> int:
    """Where the next prefill chunk ends: these are counted from the first token of a segment."""
    start = contents.segments[-1].start if _open(contents) else contents.tokens
    return start + ((contents.tokens - start) // prefill_chunk + 1) * prefill_chunk


def _open(contents: Contents) -> bool:
    """Whether the last segment has room for more tokens."""
    return bool(contents.segments) and contents.segments[-1].stop < contents.segments[-1].room


def keep_cache(contents: Contents, cache: LongspanCache, total: int, stop: int, target: Target) -> Contents:
    """The contents with the cache's tokens up to ``stop`` in the file of their segment, with room for ``total``."""
    coder = Coder(contents.streams, contents.parts()) if contents.kv == "int8" else None
    stored = streams_of(cache, total, coder, contents.tokens)
    segments, data = list(contents.segments), contents.data
    if not _open(contents):
        # A stream that does not say yet how large it is goes to another segment.
        room, rooms = (
            (total, stored.rooms) if stored.whole else (stop, streams_of(cache, stop, coder, contents.tokens).rooms)
        )
        starts = [span.stop for span in segments[-1].spans] if segments else []
        starts += [0] * (len(rooms) - len(starts))
        file = target.open(len(segments))
        segments.append(files_of_segments.plan(contents.tokens, room, starts, rooms))
        file.truncate(files_of_segments.size_of(stored.streams, segments[-1]))
        data = (*data, file)
    filled = files_of_segments.put(stored.streams, segments[-1], data[-1].fileno(), stored.views)
    segments[-1] = replace(filled, stop=stop)
    return replace(contents, streams=tuple(stored.streams), segments=tuple(segments), data=data, state=state_of(cache))


def forward(model: PreTrainedModel, ids: Tensor, cache: LongspanCache, logits: int = 1) -> Tensor:
    """Let a model read ``[T]`` ids after what the cache holds; its last ``logits`` logits, ``[logits, V]`` in fp32."""
    more = {**last_logits(model, logits), CACHE_ARGUMENT: cache}
    out = model(input_ids=ids[None].to(model.device), use_cache=True, **more)
    found: Tensor = out.logits[0, -logits:].float()
    return found
