"""Keys and values in pages, as the kernels read them and as new ones are written.

A layer's pages are a tensor ``[pages, Hkv, size, 2D]``: for each page and key head the keys of ``size`` tokens, and
after these their values, so that each are read in one go. Behind a page's last head there may be room; see ``bounds``.
A key head's tokens are numbered through all pages, so that one list of numbers stands for the same tokens in every
head: token ``t`` of page ``p`` is number ``p · step + t``, with ``step`` the page's memory in keys of one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from longspan.errors import LongspanError


@dataclass(frozen=True, eq=False)
class NewTokens:
    """New tokens of one request.

    Attributes:
        first: their first row in the batch.
        past: how many tokens of the request are stored already.
        count: how many there are.
        pages: ``[n]`` int64 or int32, the request's pages in order, at least those of its tokens; on any device.
    """

    first: int
    past: int
    count: int
    pages: Tensor


@dataclass(frozen=True)
class Slots:
    """Where the new tokens of a step are written.

    Attributes:
        pages, places: ``[T]`` int64, the page of each token and its place there.
        rows: ``[T]`` int64, the tokens' rows in the batch; None if these are all rows in order.
    """

    pages: Tensor
    places: Tensor
    rows: Tensor | None

    @classmethod
    def of(cls, mapping: Tensor, size: int) -> Slots:
        """From ``page · size + place`` of each token, ``[T]``; -1 is padding, which is not written."""
        mapping = mapping.long()
        rows = None
        if bool((mapping < 0).any()):
            rows = torch.nonzero(mapping >= 0).flatten()
            mapping = mapping[rows]
        return cls(mapping // size, mapping % size, rows)


def page_step(cache: Tensor) -> int:
    """The difference of the numbers of a token's place in two pages that follow one another.

    Args:
        cache: ``[pages, Hkv, size, 2D]``.

    Raises:
        LongspanError: the pages do not lie in memory as said above.
    """
    return _page_step(cache.shape, cache.stride())


@lru_cache(maxsize=16)  # the layers of a model have pages of few shapes
def _page_step(shape: tuple[int, int, int, int], strides: tuple[int, ...]) -> int:
    pages, heads, size, width = shape
    page = strides[0] if pages > 1 else heads * size * width
    if strides[1:] != (size * width, width, 1) or page % width or page < heads * size * width:
        raise LongspanError(
            f"pages of shape {list(shape)} have strides {list(strides)}, not one key head after the "
            "other without gaps; leave other caches and layouts out"
        )
    return page // (width // 2)


def halves(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[pages, Hkv, size, D]``, in the pages' memory."""
    pages, heads, size, width = cache.shape
    channels = width // 2
    return _both(cache, (pages, heads, size, channels), (page_step(cache) * channels, size * width, channels, 1))


def all_tokens(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[1, Hkv, N, D]`` of all pages, by number; nothing is copied."""
    pages, heads, size, width = cache.shape
    channels = width // 2
    # The rows of one head reach over those of the others, so that its tokens have equal steps through all pages.
    count = (pages - 1) * page_step(cache) + size
    return _both(cache, (1, heads, count, channels), (0, size * width, channels, 1))


def _both(cache: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The keys, which a page of a head begins with, and the values, which come after its ``size`` keys."""
    begin, values = cache.storage_offset(), cache.shape[2] * (cache.shape[3] // 2)
    return cache.as_strided(shape, strides, begin), cache.as_strided(shape, strides, begin + values)


def text_tokens(cache: Tensor, pages: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Keys and values ``[1, Hkv, count, D]`` of the first tokens of these pages, copied one after the other."""
    heads, size, width = cache.shape[1:]
    pages = pages[: -(-count // size)]
    keys, values = (cache.new_empty(1, heads, len(pages) * size, width // 2) for _ in range(2))
    for to, lying in zip((keys, values), halves(cache), strict=True):
        for head in range(heads):
            torch.index_select(lying[:, head].flatten(1), 0, pages, out=to[0, head].view(len(pages), -1))
    return keys[:, :, :count], values[:, :, :count]


def write(cache: Tensor, keys: Tensor, values: Tensor, slots: Slots) -> None:
    """Write new keys and values ``[T, Hkv, D]`` to their pages."""
    if slots.rows is not None:
        keys, values = keys[slots.rows], values[slots.rows]
    for new, lying in zip((keys, values), halves(cache), strict=True):
        lying[slots.pages, :, slots.places] = new.to(cache.dtype)


def as_slice(ascending: Tensor, device: torch.device) -> slice | Tensor:
    """Indices ``[P]`` int64, on ``device``; a slice, which copies nothing, if they follow one another."""
    first, last = int(ascending[0]), int(ascending[-1])
    follow = last + 1 - first == len(ascending) and bool((ascending.diff() == 1).all())
    return slice(first, last + 1) if follow else ascending.to(device)
