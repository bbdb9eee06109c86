"""Keys and values in vLLM's pages, as the kernels read them and as new ones are written.

A layer's pages are a tensor ``[pages, Hkv, size, 2D]``: for each page and key head the keys and values of ``size``
tokens, side by side. Behind a page's last head there may be room, of whole tokens; see ``bounds``. A key head's tokens
are numbered through all pages, so that one list of numbers stands for the same tokens in every head: token ``t`` of
page ``p`` is number ``p · step + t``, with ``step = Hkv · size`` and the tokens of the room.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import LongspanError


@dataclass(frozen=True)
class NewTokens:
    """New tokens of one request.

    Attributes:
        first: their first row in the batch.
        past: how many tokens of the request are stored already.
        count: how many there are.
        pages: ``[n]`` int64, the request's pages in order.
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
        rows: ``[T]`` int64, the tokens' rows in the batch; None where these are all rows in order.
    """

    pages: Tensor
    places: Tensor
    rows: Tensor | None

    @classmethod
    def of(cls, mapping: Tensor, size: int) -> Slots:
        """From vLLM's ``slot_mapping`` ``[T]``, ``page · size + place``; -1 is padding, which is not written."""
        mapping = mapping.long()
        rows = None
        if bool((mapping < 0).any()):
            rows = torch.nonzero(mapping >= 0).flatten()
            mapping = mapping[rows]
        return cls(mapping // size, mapping % size, rows)


def page_step(cache: Tensor) -> int:
    """The difference of the numbers of a token's place in two pages that follow one another.

    Raises:
        LongspanError: the pages do not lie in memory as said above.
    """
    pages, heads, size, width = cache.shape
    inside = cache.stride()[1:] == (size * width, width, 1)
    page = cache.stride(0) if pages > 1 else heads * size * width
    if not inside or page % width or page < heads * size * width:
        raise LongspanError(
            f"longspan in vLLM: pages of shape {list(cache.shape)} have strides {list(cache.stride())}, not one key "
            "head after the other without gaps; leave other caches and layouts out"
        )
    return page // width


def all_tokens(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[1, Hkv, N, D]`` of all pages, by number; nothing is copied."""
    pages, heads, size, width = cache.shape
    # The rows of one head reach over those of the others, so that its tokens have equal steps through all pages.
    rows = cache.as_strided((1, heads, (pages - 1) * page_step(cache) + size, width), (0, *cache.stride()[1:]))
    return rows[..., : width // 2], rows[..., width // 2 :]


def text_tokens(cache: Tensor, pages: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Keys and values ``[1, Hkv, count, D]`` of the first tokens of these pages (int64), copied one after the other."""
    heads, size, width = cache.shape[1:]
    rows = cache.new_empty(heads, len(pages), size * width)
    for head in range(heads):
        torch.index_select(cache[:, head].flatten(1), 0, pages, out=rows[head])
    rows = rows.view(1, heads, -1, width)[:, :, :count]
    return rows[..., : width // 2], rows[..., width // 2 :]


def write(cache: Tensor, keys: Tensor, values: Tensor, slots: Slots) -> None:
    """Write new keys and values ``[T, Hkv, D]`` to their pages."""
    if slots.rows is not None:
        keys, values = keys[slots.rows], values[slots.rows]
    width = keys.shape[-1]
    cache[slots.pages, :, slots.places, :width] = keys.to(cache.dtype)
    cache[slots.pages, :, slots.places, width:] = values.to(cache.dtype)
