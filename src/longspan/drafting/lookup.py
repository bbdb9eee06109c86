"""Drafts from the text itself: what followed the last tokens where they stood before."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.drafting.proposal import Proposal

_BITS = 21  # of an id: three ids are one int64
_LAST = 64  # of the places of three tokens, the last ones that are compared further back
_DEEP = 16  # tokens that are compared at most
_NEW = 4096  # tokens after the indexed ones, from which on all are indexed anew


class Lookup:
    """Looks the last tokens up in the text and proposes what followed them there.

    The longest match wins, the last one of equally long ones. A match has two tokens at least. The text is indexed in
    O(T log T) once; a lookup takes O(log T), and a text that continues the one before keeps its index.
    """

    def __init__(self) -> None:
        self._indexed = torch.empty(0, dtype=torch.int64)
        self._keys = self._places = self._indexed  # of three tokens each, the last one first; ascending
        self._shared = 0  # of the indexed tokens, those that the text has, too
        self._recent: dict[tuple[int, ...], list[int]] = {}  # the places of two and of three tokens behind those
        self._known = 0  # tokens of the text that are in ``_recent`` or indexed

    def begin(self, tokens: Tensor) -> None:
        """A text begins, ``[T]`` int64."""
        tokens = tokens.cpu()
        most = min(len(tokens), len(self._indexed))
        unlike = (tokens[:most] != self._indexed[:most]).nonzero()
        self._shared = int(unlike[0]) if len(unlike) else most
        self._recent = {}
        if len(tokens) - self._shared > _NEW or 2 * self._shared < len(self._indexed):
            self._index(tokens.clone())
        self._known = self._shared

    def propose(self, tokens: Tensor, most: int) -> Proposal:
        """At most ``most`` tokens that may follow ``tokens`` ``[T]`` int64; see ``Drafter``."""
        self._take_in(tokens)
        place, matched = self._longest(tokens)
        if not matched or most < 1:
            return Proposal((), "none")
        found = tokens[place + 1 : place + 1 + most].tolist()
        # A match that reaches the end of the text goes on with what is proposed, as a text that repeats itself does.
        found = (found * most)[:most]
        return Proposal(tuple(found), f"{min(matched, 4) if matched < 8 else 8} tokens alike")

    def _index(self, tokens: Tensor) -> None:
        self._indexed, self._shared = tokens, len(tokens)
        # Place n: the tokens n, n - 1 and n - 2, of which the first ones have none before them.
        padded = torch.nn.functional.pad(tokens, (2, 0))
        keys = _key(padded[2:], padded[1:-1], padded[:-2])
        self._keys, self._places = keys.sort(stable=True)

    def _take_in(self, tokens: Tensor) -> None:
        """Note the places of tokens that came since, but for the last one: what follows it is not known."""
        first = max(self._known - 2, 0)
        new = tokens[first:-1].tolist()
        for n in range(self._known - first, len(new)):
            for size in (2, 3):
                if n + 1 >= size:
                    self._recent.setdefault(tuple(new[n + 1 - size : n + 1]), []).append(first + n)
        self._known = max(self._known, len(tokens) - 1)

    def _longest(self, tokens: Tensor) -> tuple[int, int]:
        """The place of the longest match, and how many tokens are alike; 0 if fewer than two."""
        if len(tokens) < 3:
            return 0, 0
        a, b, c = tokens[-3:].tolist()
        for key, low, high in (
            ((a, b, c), _key(c, b, a), _key(c, b, a)),
            ((b, c), _key(c, b, 0), _key(c, b + 1, 0) - 1),
        ):
            first, stop = torch.searchsorted(self._keys, low), torch.searchsorted(self._keys, high, right=True)
            own = self._places[first:stop]
            own = own[own < min(self._shared, len(tokens) - 1)]
            places = [
                *(own if len(key) == 3 else own.sort().values)[-_LAST:].tolist(),
                *self._recent.get(key, ())[-_LAST:],
            ]
            if places:
                break
        else:
            return 0, 0
        at = torch.tensor(places)  # ascending: the recent ones are behind the indexed ones
        deep = min(_DEEP, len(tokens))
        back = at[:, None] - torch.arange(deep)
        alike = (tokens[back.clamp(min=0)] == tokens[-deep:].flip(0)) & (back >= 0)
        counts = alike.long().cumprod(dim=1).sum(dim=1)
        best = len(at) - 1 - int(counts.flip(0).argmax())
        matched = int(counts[best])
        return (int(at[best]), matched) if matched >= 2 else (0, 0)


def _key(last: Tensor | int, before: Tensor | int, earlier: Tensor | int) -> Tensor:
    return torch.as_tensor((last << 2 * _BITS) + (before << _BITS) + earlier)
