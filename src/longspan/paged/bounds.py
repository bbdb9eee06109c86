"""The bounds of chunks, which lie with the pages: in each channel the smallest and the largest key, before rotation.

A chunk is some pages that follow one another in a text. Each page has room for one more token of every key head behind
its last one; there lie the bounds of the chunk's keys up to the end of the page, so that those of a full chunk are in
its last page. Where a page goes its bounds go with it: texts that begin alike share both. Keys are bounded in the
pages' dtype, which is theirs: nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.dtypes import widen
from longspan.errors import LongspanError
from longspan.paged.pages import NewTokens, page_step


def room(cache: Tensor) -> Tensor:
    """``[pages, Hkv, 2D]``: of each page and key head the negated smallest and the largest key, side by side."""
    pages, heads, size, width = cache.shape
    if page_step(cache) != 2 * heads * (size + 1):
        raise LongspanError(
            f"pages of shape {list(cache.shape)} have strides {list(cache.stride())}, which leaves "
            "no room for the bounds of chunks; leave other caches and layouts out"
        )
    after = cache.storage_offset() + heads * size * width
    return cache.as_strided((pages, heads, width), (cache.stride(0), width, 1), after)


@dataclass(frozen=True)
class _OneMore:
    """One new token of each of several requests.

    Attributes:
        rows: their rows in the batch.
        pages: the pages of the tokens.
        before: the pages that hold the bounds of the tokens before.
        first: whether a token is the first of its chunk.
    """

    rows: Tensor
    pages: Tensor
    before: Tensor
    first: Tensor


class Updates:
    """Updates of bounds by one step's new tokens, for all layers.

    Args:
        few, many: requests that are taken in together, token by token, and one by one.
        length: tokens of a chunk, a multiple of ``size``.
        size: tokens of a page.
    """

    def __init__(
        self, few: Sequence[NewTokens], many: Sequence[NewTokens], length: int, size: int, device: torch.device
    ) -> None:
        late = _late([*few, *many], length, size)
        few = [one for one in few if one not in late]
        self._many, self._length, self._size = [*(one for one in many if one not in late), *late], length, size
        self._few = []
        for n in range(max((one.count for one in few), default=0)):
            own = [(one, one.past + n) for one in few if n < one.count]
            columns = (
                [one.first + n for one, _ in own],
                [i % length == 0 for _, i in own],
            )
            rows, first = (torch.tensor(column, device="cpu").to(device) for column in columns)
            # Looked up where the pages are numbered, for which a device need not be waited.
            pages = [one.pages[i // size] for one, i in own]
            before = [
                one.pages[i // size - 1] if i and i % size == 0 else page
                for (one, i), page in zip(own, pages, strict=True)
            ]
            of, last = (torch.stack(each).to(device).long() for each in (pages, before))
            self._few.append(_OneMore(rows, of, last, first[:, None, None]))

    def write(self, cache: Tensor, keys: Tensor) -> None:
        """Take in the step's unrotated keys ``[T, Hkv, D]``."""
        held = room(cache)
        signed = torch.cat((-keys, keys), dim=-1).to(held.dtype)
        for step in self._few:
            new = signed[step.rows]
            held[step.pages] = torch.where(step.first, new, torch.maximum(new, held[step.before]))
        for one in self._many:
            self._extend(held, one, signed[one.first : one.first + one.count])

    def _extend(self, held: Tensor, one: NewTokens, signed: Tensor) -> None:
        """One request's new tokens ``[n, Hkv, 2D]``."""
        length, size, stop = self._length, self._size, one.past + one.count
        begin, end = one.past // length * length, -(-stop // length) * length
        grid = signed.new_full((end - begin, *signed.shape[1:]), float("-inf"))
        grid[one.past - begin : stop - begin] = signed
        pages = grid.unflatten(0, (-1, size)).amax(dim=1)
        numbers = one.pages.to(held.device)
        if one.past > begin:
            last = (one.past - 1) // size
            at = last - begin // size
            pages[at] = torch.maximum(pages[at], held[numbers[last]])
        pages = pages.unflatten(0, (-1, length // size)).cummax(dim=1).values.flatten(0, 1)
        touched = slice(one.past // size, -(-stop // size))
        own = slice(touched.start - begin // size, touched.stop - begin // size)
        held[numbers[touched].long()] = pages[own]


def _late(requests: Sequence[NewTokens], length: int, size: int) -> list[NewTokens]:
    """Requests that may go on from a page which another one fills in this step, each after those that it needs.

    An engine may share a page from when it is scheduled: texts that begin alike may come in one step, in any order. A
    page has the same place in all of them, so places say enough.
    """
    filled = {end for one in requests for end in range((one.past // size + 1) * size, one.past + one.count + 1, size)}
    late = [one for one in requests if one.past % length and one.past in filled]
    return sorted(late, key=lambda one: one.past)


def last_pages(pages: Tensor, chunks: int, length: int, size: int) -> Tensor:
    """``[P, chunks]``: of the pages ``[P, n]`` of texts those that hold the bounds of their first, full chunks.

    The pages of one text may be ``[n]``; the result then has no ``P`` either.
    """
    each = length // size
    return pages[..., each - 1 : chunks * each : each]


def bounds(cache: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest keys ``[P, Hkv, n, D]``, widened, that pages ``[P, n]`` hold."""
    held = widen(room(cache)[pages.long()]).transpose(1, 2)
    negated, high = held.chunk(2, dim=-1)
    return -negated, high
