"""What was read before is not read again: the longest prefix of a prompt that a document or a conversation holds.

All of it belongs to the engine's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents import Document
from longspan.documents.contents import NOWHERE, Contents, attached
from longspan.documents.encoded import InMemory
from longspan.documents.reading import Unnamed, keep_cache
from longspan.errors import LongspanError
from longspan.hf.cache import LongspanCache, StoreLayer

_LEAST = 16  # tokens that a shared beginning has to have to be worth a copy
_COPY = 20  # reading a token costs more than copying so many


@dataclass
class Taken:
    """A cache of one request.

    Attributes:
        cache: holds the first ``tokens`` tokens of its prompt.
        document: that it begins with; None for none.
        mapped: tokens whose bytes are mapped from files, and take no memory.
        disk: bytes of files of conversations that are mapped.
    """

    cache: LongspanCache
    tokens: int
    document: Document | None = None
    mapped: int = 0
    disk: int = 0


@dataclass
class _Kept:
    """A conversation: its ``ids`` ``[T]``, in a cache or in files; and the bytes it takes in memory and on disk."""

    ids: Tensor
    document: Document | None
    held: Taken | Contents
    memory: int
    disk: int


class Caches:
    """The caches of earlier turns, the least recently used ones first.

    Args:
        memory: bytes of caches in memory. directory: folder for others; None drops them. disk: bytes of those.
    """

    def __init__(self, model: PreTrainedModel, *, memory: int, directory: Path | None, disk: int) -> None:
        self._model, self._attachment = model, attached(model)
        self._memory, self._directory, self._disk = memory, directory, disk
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(one.memory for one in self._kept)

    @property
    def disk_nbytes(self) -> int:
        """Bytes in files."""
        return sum(one.disk for one in self._kept)

    def take(self, ids: Tensor, documents: Iterable[Document]) -> Taken:
        """A cache that holds as much as there is of the beginning of ``ids`` ``[T]``, and leaves at least one token."""
        document = max(
            (one for one in documents if one.tokens < len(ids) and common(ids, one.contents.ids) == one.tokens),
            key=lambda one: one.tokens,
            default=None,
        )
        least = document.tokens if document is not None else 0
        shared = sorted(((min(common(ids, one.ids), len(ids) - 1), one) for one in self._kept), key=lambda x: -x[0])
        for tokens, one in shared:
            if tokens <= least:
                break
            taken = self._from(one, tokens, least)
            if taken is not None:
                return taken
        if document is not None:
            return Taken(document.cache(), document.tokens, document, self._mapped(document.tokens))
        return Taken(self._attachment.new_cache(), 0)

    def _from(self, one: _Kept, tokens: int, least: int) -> Taken | None:
        """The first ``tokens`` of a conversation, None where they cannot be had or are not worth it."""
        if isinstance(one.held, Contents):
            if tokens < len(one.ids):
                return None  # the small state in the files is that of the end
            self._kept.append(self._kept.pop(self._at(one)))  # it was used last
            cache = one.held.cache(self._model, self._attachment)
            return Taken(cache, tokens, one.document, self._mapped(tokens), one.disk)
        if tokens == len(one.ids):
            del self._kept[self._at(one)]
            return replace(one.held, tokens=tokens)
        copies = one.document is None  # else a copy would have the document's bytes too
        if tokens - least < _LEAST or tokens * _COPY < len(one.ids) or not (copies or tokens >= one.held.mapped):
            return None
        if not copies:
            del self._kept[self._at(one)]  # its last turns are cut off, and read again if they come back
        with suppress(
            ValueError, RuntimeError
        ):  # a method, or a stock sliding layer, may not be able to go back so far
            cache = deepcopy(one.held.cache) if copies else one.held.cache
            cache.crop(tokens - len(one.ids))
            return Taken(cache, tokens) if copies else replace(one.held, cache=cache, tokens=tokens)
        return None

    def _mapped(self, tokens: int) -> int:
        """How many of the first ``tokens`` take no memory of their own: none where the device needs a copy of them."""
        on_device = self._attachment.report.kv_tier == "device" and self._model.device.type != "cpu"
        return 0 if on_device else tokens

    def keep(self, ids: Tensor, taken: Taken) -> None:
        """Keep a cache that holds exactly ``ids`` ``[T]``; what has no room in memory goes to disk, or goes."""
        if len(ids) <= taken.mapped:
            return
        self._kept = [one for one in self._kept if common(ids, one.ids) < len(one.ids)]
        memory = round(_size(taken.cache) * (1 - taken.mapped / len(ids)))
        self._kept.append(_Kept(ids, taken.document, taken, memory, taken.disk))
        for one in list(self._kept):
            if self.nbytes <= self._memory:
                break
            if isinstance(one.held, Taken):
                self._put_out(one)
        while self.disk_nbytes > self._disk:
            del self._kept[next(n for n, one in enumerate(self._kept) if one.disk)]

    def forget(self, document: Document) -> None:
        """Drop what maps a document's bytes."""
        self._kept = [one for one in self._kept if one.document is not document]

    def _put_out(self, one: _Kept) -> None:
        """To disk, if there is one that has room."""
        assert isinstance(one.held, Taken)
        at = self._at(one)
        if self._directory is None:
            del self._kept[at]
            return
        contents = Contents() if one.document is None else one.document.contents
        base = replace(contents, encoded=InMemory(contents.ids, contents.places, None))
        more = one.ids[len(base.ids) :]
        whole = base.with_text(more, torch.tensor(NOWHERE).expand(len(more), 2), None, [])
        total = len(one.ids)
        try:
            held = keep_cache(whole, one.held.cache, total, total, Unnamed(self._directory))
        except (LongspanError, OSError):
            # A layer that no file holds, or a full disk: it is read again when it is asked for.
            del self._kept[at]
            return
        self._kept[at] = _Kept(one.ids, one.document, held, 0, os.fstat(held.data[-1].fileno()).st_size)

    def _at(self, one: _Kept) -> int:
        return next(n for n, other in enumerate(self._kept) if other is one)


def common(a: Tensor, b: Tensor) -> int:
    """How many ids two texts ``[T]`` have in common from the first one on."""
    shared = min(len(a), len(b))
    for size in (min(shared, 64), shared):  # most differ early
        other = (a[:size] != b[:size]).nonzero()
        if len(other):
            return int(other[0])
    return shared


def _size(cache: LongspanCache) -> int:
    stock = (layer for layer in cache.layers if not isinstance(layer, StoreLayer) and layer.is_initialized)
    return cache.nbytes + sum(layer.keys.nbytes + layer.values.nbytes for layer in stock)
