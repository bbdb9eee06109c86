"""What was read before is not read again: the longest prefix of a prompt that a document or a conversation holds.

All of it belongs to the engine's thread.
"""

from __future__ import annotations

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
        document: whose bytes it maps, so that they count for nothing; None for none.
        mapped: bytes of those.
    """

    cache: LongspanCache
    tokens: int
    document: Document | None
    mapped: int


@dataclass
class _Kept:
    """A conversation: its ``ids`` ``[T]``, in a cache or in files."""

    ids: Tensor
    document: Document | None
    held: Taken | Contents
    nbytes: int


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
        return sum(one.nbytes for one in self._kept if isinstance(one.held, Taken))

    @property
    def disk_nbytes(self) -> int:
        """Bytes in files."""
        return sum(one.nbytes for one in self._kept if isinstance(one.held, Contents))

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
            return self._fresh(document.cache(), document.tokens, document)
        return self._fresh(self._attachment.new_cache(), 0, None)

    def _fresh(self, cache: LongspanCache, tokens: int, document: Document | None) -> Taken:
        return Taken(cache, tokens, document, _size(cache))

    def _from(self, one: _Kept, tokens: int, least: int) -> Taken | None:
        """The first ``tokens`` of a conversation, None where they cannot be had or are not worth it."""
        if isinstance(one.held, Contents):
            if tokens < len(one.ids):
                return None  # the small state in the files is that of the end
            self._kept.append(self._kept.pop(self._at(one)))  # it was used last
            return self._fresh(one.held.cache(self._model, self._attachment), tokens, one.document)
        if tokens == len(one.ids):
            del self._kept[self._at(one)]
            return replace(one.held, tokens=tokens)
        if tokens - least < _LEAST or tokens * _COPY < len(one.ids):
            return None
        with suppress(LongspanError):  # a method may not have what it takes to go back so far
            if one.document is None:
                twin = deepcopy(one.held.cache)
                twin.crop(tokens)
                return Taken(twin, tokens, None, 0)
            # A copy would have the document's bytes too. The turns that are cut off are read again if they come back.
            one.held.cache.crop(tokens)
            del self._kept[self._at(one)]
            return replace(one.held, tokens=tokens)
        return None

    def keep(self, ids: Tensor, taken: Taken) -> None:
        """Keep a cache that holds exactly ``ids`` ``[T]``; what has no room in memory goes to disk, or goes."""
        if taken.document is not None and len(ids) <= taken.document.tokens:
            return
        self._kept = [one for one in self._kept if common(ids, one.ids) < len(one.ids)]
        self._kept.append(_Kept(ids, taken.document, taken, max(_size(taken.cache) - taken.mapped, 0)))
        for one in list(self._kept):
            if self.nbytes <= self._memory:
                break
            if isinstance(one.held, Taken):
                self._put_out(one)
        while self.disk_nbytes > self._disk:
            del self._kept[next(n for n, one in enumerate(self._kept) if isinstance(one.held, Contents))]

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
        except (
            LongspanError,
            OSError,
        ):  # a layer that no file holds, or a full disk: it is read again when it is asked
            del self._kept[at]
            return
        self._kept[at] = _Kept(one.ids, one.document, held, one.nbytes)

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
