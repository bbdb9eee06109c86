"""Prefix caching: a prompt continues from the longest prefix that a document or an earlier conversation has.

Only the engine's thread uses this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten
from transformers import PreTrainedModel

from longspan.choosing.unit_index import UnitIndex
from longspan.documents import Document
from longspan.documents.contents import Contents, attached
from longspan.documents.encoded import InMemory
from longspan.documents.reading import Unnamed, keep_cache
from longspan.documents.segments import size_of, write_at
from longspan.documents.state import State, state_bytes, state_from
from longspan.errors import DocumentError, LongspanError
from longspan.hf.cache import LongspanCache, StoreLayer
from longspan.machine.parts import read_into
from longspan.memory.segments import mappings, most_mappings
from longspan.serve.engine import log
from longspan.serve.settings import most_files

_MIN_SHARED = 16  # tokens that a shared beginning has to have to be worth a copy
_COPY_COST = 20  # reading a token costs more than copying so many
_SHARE = 0.5  # of the open files and mappings that a process may have; the rest is for requests and documents


@dataclass
class PrefixCache:
    """The cache of one request.

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
class _CachedConversation:
    """A conversation.

    Attributes:
        own: ids ``[T]`` after those of ``document``.
        storage: its cache, or the files of it.
        memory, disk: their bytes; ``own`` is counted with a cache in memory, beside the files of one it is little.
    """

    own: Tensor
    document: Document | None
    storage: PrefixCache | Contents
    memory: int
    disk: int

    def __len__(self) -> int:
        """Tokens, those of the document among them."""
        return len(self.own) + (0 if self.document is None else self.document.tokens)


class Caches:
    """The caches of earlier turns, the least recently used ones first.

    Args:
        memory: bytes of caches in memory. directory: folder for others; None drops them. disk: bytes of those.
    """

    def __init__(self, model: PreTrainedModel, *, memory: int, directory: Path | None, disk: int) -> None:
        self._model, self._attachment = model, attached(model)
        self._memory, self._directory, self._disk = memory, directory, disk
        self._conversations: list[_CachedConversation] = []

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(one.memory for one in self._conversations)

    @property
    def disk_nbytes(self) -> int:
        """Bytes in files."""
        return sum(one.disk for one in self._conversations)

    def take(self, ids: Tensor, documents: Iterable[Document]) -> PrefixCache:
        """A cache with the longest known prefix of ``ids`` ``[T]``, without their last token."""
        self._unmap()
        document = max(
            (one for one in documents if one.tokens < len(ids) and common_prefix(ids, one.contents.ids) == one.tokens),
            key=lambda one: one.tokens,
            default=None,
        )
        least = document.tokens if document is not None else 0
        shared = sorted(
            ((min(_shared(ids, document, one), len(ids) - 1), one) for one in self._conversations), key=lambda x: -x[0]
        )
        for tokens, one in shared:
            if tokens <= least:
                break
            prefix = self._continue(one, tokens, least)
            if prefix is not None:
                return prefix
        if document is not None:
            cache = document.cache()
            # Of a document in int8 some methods need a copy that is not.
            copied = document.contents.kv != "exact" and not any(store.coded for store in cache.stores)
            return PrefixCache(cache, document.tokens, document, 0 if copied else self.mapped(document.tokens))
        return PrefixCache(self._attachment.new_cache(), 0)

    def _continue(self, one: _CachedConversation, tokens: int, least: int) -> PrefixCache | None:
        """The first ``tokens`` of a conversation, or somewhat fewer; None if that is not worth it."""
        stored, at = one.storage, self._index_of(one)
        on_disk = isinstance(stored, Contents)
        if tokens < len(one) and (
            tokens - least < _MIN_SHARED or tokens * _COPY_COST < len(one) or (on_disk and one.document is not None)
        ):
            return None
        if isinstance(stored, Contents):
            try:
                cache = _with_state(stored).cache(self._model, self._attachment)
            except (LongspanError, MemoryError, OSError) as error:  # too many mappings, or the disk fails
                log.warning(
                    "a conversation in %s cannot be opened, so its prompt is read again: %s", self._directory, error
                )
                return None
            stored = PrefixCache(cache, len(one), one.document, self.mapped(len(one)), one.disk)
        if tokens == len(one):
            if on_disk:
                self._conversations.append(self._conversations.pop(at))  # it was used last
            else:
                del self._conversations[at]
            return replace(stored, tokens=tokens)
        tokens = stored.cache.croppable(tokens)
        if tokens - least < _MIN_SHARED or (one.document is not None and tokens < stored.mapped):
            return None
        if one.document is None:
            try:
                cache = deepcopy(stored.cache)  # which brings into memory what lies in files
            except (RuntimeError, MemoryError) as error:  # there is none for it
                log.warning("a conversation cannot be copied, so its prompt is read again: %s", error)
                return None
            cache.crop(tokens - len(one))
            return PrefixCache(cache, tokens)
        # A copy would have the document's bytes too. So the last turns are cut off, and read again if they come back.
        del self._conversations[at]
        stored.cache.crop(tokens - len(one))
        if tokens < one.document.tokens:  # of a copy on a device, and no conversation about the document
            return PrefixCache(stored.cache, tokens)
        return replace(stored, tokens=tokens)

    def mapped(self, tokens: int) -> int:
        """How many of the first ``tokens`` take no memory of their own: none if the device needs a copy of them."""
        on_device = self._attachment.report.kv_tier in ("device", "auto") and self._model.device.type != "cpu"
        return 0 if on_device else tokens

    def keep(self, ids: Tensor, prefix: PrefixCache) -> None:
        """Keep a cache of exactly ``ids`` ``[T]``; beyond ``memory`` the least recently used leave it."""
        if len(ids) <= prefix.mapped:
            return
        document = prefix.document
        self._conversations = [one for one in self._conversations if _shared(ids, document, one) < len(one)]
        own = ids if document is None else ids[document.tokens :].clone()
        memory = own.nbytes + _size(prefix.cache, prefix.mapped / len(ids))
        self._conversations.append(_CachedConversation(own, document, prefix, memory, prefix.disk))
        self._bound_memory()
        self._unmap()
        self._bound_disk()

    def _bound_memory(self) -> None:
        held = self.nbytes
        for one in [one for one in self._conversations if isinstance(one.storage, PrefixCache)]:
            if held <= self._memory:
                return
            held -= one.memory
            self._offload(one)

    def _bound_disk(self) -> None:
        on_disk, held = [one for one in self._conversations if one.disk], self.disk_nbytes
        while on_disk and (held > self._disk or len(on_disk) > _SHARE * most_files()):
            held -= on_disk[0].disk
            del self._conversations[self._index_of(on_disk.pop(0))]

    def _unmap(self) -> None:
        """Let the least recently used leave memory while this process has many mappings: each head of one has some."""
        while mappings() > _SHARE * most_mappings() and any(map(_is_mapped, self._conversations)):
            self._offload(next(filter(_is_mapped, self._conversations)))  # no name holds it: it is unmapped with it

    def forget(self, document: Document) -> None:
        """Drop all conversations about a document."""
        self._conversations = [one for one in self._conversations if one.document is not document]

    def _offload(self, one: _CachedConversation) -> None:
        """Move a conversation from memory to disk; drop it if there is no room."""
        assert isinstance(one.storage, PrefixCache)
        at = self._index_of(one)
        if self._directory is None:
            del self._conversations[at]
            return
        contents = Contents() if one.document is None else one.document.contents
        base, total = replace(contents, encoded=InMemory()), len(one)  # the conversation has its tokens itself
        try:
            if base.kv != "exact":
                raise DocumentError("its document is in int8, and what it has computed itself is exact")
            storage = keep_cache(base, one.storage.cache, total, total, Unnamed(self._directory))
            storage = _without_state(storage)
        except (LongspanError, OSError) as error:
            # A layer that no file can hold, or a full disk: its prompt is read again when it returns.
            log.warning("a conversation cannot be kept in %s: %s", self._directory, error)
            del self._conversations[at]
            return
        self._conversations[at] = _CachedConversation(
            one.own, one.document, storage, 0, os.fstat(storage.data[-1].fileno()).st_size
        )

    def _index_of(self, one: _CachedConversation) -> int:
        return next(n for n, other in enumerate(self._conversations) if other is one)


def _shared(ids: Tensor, document: Document | None, one: _CachedConversation) -> int:
    """``common_prefix`` with a conversation; ``ids`` ``[T]`` begin with those of ``document``, if it is given."""
    known = 0
    if one.document is not None:
        known = one.document.tokens
        if one.document is not document and (shared := common_prefix(ids, one.document.contents.ids)) < known:
            return shared
    return known + common_prefix(ids[known:], one.own)


def common_prefix(a: Tensor, b: Tensor) -> int:
    """How many ids two texts ``[T]`` have in common from the first one on."""
    shared = min(len(a), len(b))
    for size in (min(shared, 64), shared):  # most differ early
        other = (a[:size] != b[:size]).nonzero()
        if len(other):
            return int(other[0])
    return shared


def _without_state(stored: Contents) -> Contents:
    """The same, with its state, such as sliding windows, behind the tokens in their last file and not in memory."""
    file = stored.data[-1].fileno()
    write_at(file, os.fstat(file).st_size, memoryview(state_bytes(stored.state)))
    return replace(stored, state=State())


def _with_state(stored: Contents) -> Contents:
    """Inverts ``_without_state``."""
    file, at = stored.data[-1].fileno(), size_of(stored.streams, stored.segments[-1])
    data = bytearray(os.fstat(file).st_size - at)
    read_into(file, at, memoryview(data))
    return replace(stored, state=state_from(bytes(data)))


def _is_mapped(one: _CachedConversation) -> bool:
    return isinstance(one.storage, PrefixCache) and one.storage.mapped > 0


def _size(cache: LongspanCache, mapped: float) -> int:
    """Bytes in memory of a cache of whose tokens that share is mapped."""
    # Other layers keep keys and values, a state by its number, or nothing if they attend to another layer's keys.
    stock, _ = tree_flatten([vars(layer) for layer in cache.layers if not isinstance(layer, StoreLayer)])
    indices: list[Any] = [store.index for store in cache.stores]
    inputs = sum(index.tail.nbytes for index in indices if isinstance(index, UnitIndex))
    # None of these is mapped: stock layers copy what they had with every token.
    own = inputs + sum(x.nbytes for x in stock if isinstance(x, Tensor))
    return own + round((cache.nbytes - inputs) * (1 - mapped))
