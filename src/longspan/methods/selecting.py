"""Methods that choose keys by looking at them: what the attender asks of such a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from longspan.bands import Band, KeyMap
from longspan.methods.base import Method
from longspan.positions.selected import SelectedMap, only
from longspan.selection.blocks import Blocks
from longspan.selection.chunks import Chunks
from longspan.selection.middle import Middle
from longspan.selection.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Selecting(Method):
    """A method whose ``keep`` depends on queries and keys, where ``selects`` is true.

    The rows before ``first_choosing`` keep what is known beforehand; of most methods those are the first ``L``, which
    attend to everything at its true distance. A later row attends to the first tokens, to those from a border on, both
    known beforehand and given as bands, and to units that it chose.
    """

    @property
    def selects(self) -> bool:
        return True

    def selects_in(self, layer: int) -> bool:
        """Whether the queries of this layer choose; in others they keep what ``bands_from`` says and no more."""
        return True

    def first_choosing(self, window: int) -> int:
        """The first query that chooses."""
        return window

    @property
    def chosen_from(self) -> Chunks | Tokens | Blocks | Middle:
        """The selection."""
        raise NotImplementedError

    def seen_at(self, window: int) -> SelectedMap:
        """The position map."""
        raise NotImplementedError

    @property
    def scored_keys(self) -> KeyMap | None:
        """The stored rotation that scores are made from; None where an index holds what they take."""
        return None

    @property
    def prefill(self) -> Literal["select", "full"]:
        """Whether calls of more than one token select too, or attend to everything."""
        return "select"

    def keep(self, i: Tensor, j: Tensor) -> Tensor:
        self._refuse_if_it_selects()
        return super().keep(i, j)

    def rel(self, i: Tensor, j: Tensor) -> Tensor:
        self._refuse_if_it_selects()
        return super().rel(i, j)

    def _refuse_if_it_selects(self) -> None:
        if self.selects:
            raise TypeError(f"{self.name} chooses keys by looking at them; what it keeps is not a matter of indices")

    def bands(self) -> tuple[Band, ...]:
        if not self.selects:
            return super().bands()
        raise TypeError(f"{self.name} chooses keys by looking at them; see bands_from")

    def bands_from(self, window: int, start: int, stop: int) -> tuple[Band, ...]:
        """The bands of what is kept whatever is chosen, for the queries ``start : stop`` that arrive together."""
        chosen, seen = self.chosen_from, self.seen_at(window)
        assert not isinstance(chosen, Middle), "its bands are those of its own selection and positions"
        plain = seen.plain(window) if start < window else ()
        kept = seen.kept(chosen.head, chosen.chosen, chosen.border(start, window)) if stop > window else ()
        return (
            *(only(band, lambda i: i < window) for band in plain),
            *(only(band, lambda i: i >= window) for band in kept),
        )

    def key_maps(self, window: int) -> tuple[KeyMap, ...]:
        """The stored rotations of the keys, those of the bands first."""
        bands = self.bands_from(window, 0, window + 1)
        scored = () if self.scored_keys is None else (self.scored_keys,)
        return tuple(dict.fromkeys([*(band.k_pos for band in bands), self.seen_at(window).chosen_keys, *scored]))

    def plain_rows(self, window: int) -> int:
        return window
