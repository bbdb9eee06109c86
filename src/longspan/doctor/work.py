"""A method's work for a call, counted: the keys that its queries see, and the entries they are scored against.

The counts are exact, of the selection itself: they are what ``longspan.doctor.law`` extrapolates by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import LongspanError, check_count
from longspan.methods import Method
from longspan.selection import Choosing, Selection
from longspan.selection.cost import UnitCost

MOST = 1 << 24  # tokens that are counted one by one
_AT_ONCE = 1 << 20  # queries whose counts are held at once


@dataclass(frozen=True)
class LayerShape:
    """A layer whose cache grows.

    Attributes:
        number: its place in the model.
        heads, kv_heads: ``H`` and ``Hkv``.
        key_dim, value_dim: ``D`` and ``Dv``.
        rotations: stored rotations of each key.
        itemsize: bytes of a stored number.
        attached: whether the method runs in it; else it attends to everything.
    """

    number: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rotations: int
    itemsize: int
    attached: bool = True

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of a token."""
        return self.kv_heads * (self.rotations * self.key_dim + self.value_dim) * self.itemsize


@dataclass(frozen=True)
class Work:
    """The work of some calls, summed over layers: multiplications in a prompt, bytes that a single token reads.

    Attributes:
        calls: how many.
        weights: with the model's weights.
        attended: with kept keys and values.
        scored: with what keys are chosen by.
    """

    calls: float
    weights: float
    attended: float
    scored: float

    def __add__(self, other: Work) -> Work:
        return Work(
            self.calls + other.calls,
            self.weights + other.weights,
            self.attended + other.attended,
            self.scored + other.scored,
        )


class Counter:
    """Counts the work of one resolved method on one model.

    Args:
        method, window: as in the report of ``longspan.inspect``.
        layers: those whose cache grows.
        weights: of the model, those that a token is multiplied with.
        itemsize: bytes of one.
        reduced: ``d'`` of a calibration, where one is used.
    """

    def __init__(
        self,
        method: Method,
        window: int,
        layers: tuple[LayerShape, ...],
        *,
        weights: int = 0,
        itemsize: int = 4,
        reduced: int | None = None,
    ) -> None:
        self._layers, self.reduced = layers, reduced
        self._weights, self._itemsize = weights, itemsize
        self._selection = method.selection(window)

    def keys(self, i: Tensor, *, first: int, stop: int, alone: bool = False, layer: int = 0) -> Tensor:
        """How many keys each of the queries ``i`` sees in a layer, those it chooses among them.

        Args:
            i: ``[T]`` int64, some of the queries ``first : stop``, which arrive together.
            alone: whether they arrive one at a time instead.
            layer: the layer's number.

        Returns:
            ``[T]`` int64.
        """
        selection, total = self._of(alone), torch.zeros_like(i)
        for part in selection.kept(first, stop):
            seen = torch.zeros_like(i)
            for each in part.intervals:
                seen += (torch.minimum(each.hi(i), i + 1) - each.lo(i).clamp(min=0)).clamp(min=0)
            if isinstance(selection, Choosing) and selection.chooses_in(layer):
                seen += part.chosen(i)
            total += seen if part.queries is None else seen * part.queries(i)
        return total

    def units(self, i: Tensor, *, first: int, alone: bool = False, layer: int = 0) -> Tensor:
        """How many units (tokens, chunks or blocks) each of the queries ``i`` chooses from, ``[T]`` int64."""
        selection = self._of(alone)
        if not isinstance(selection, Choosing) or not selection.chooses_in(layer):
            return torch.zeros_like(i)
        always = selection.always(first)
        between = (always.border(i) - always.head).clamp(min=0) // selection.size
        return torch.where(i >= selection.first_query, between, 0)

    def call(self, first: int, stop: int) -> Work:
        """The work of queries ``first : stop``, which arrive together: a prefill chunk."""
        layers, work = self._layers, Work(1, (stop - first) * self._weights, 0, 0)
        for a in range(first, stop, _AT_ONCE):
            i = torch.arange(a, min(a + _AT_ONCE, stop))
            for layer, times in _alike(layers, self._selection):
                pairs = self.keys(i, first=first, stop=stop, layer=layer.number) if layer.attached else i + 1
                scored = self.units(i, first=first, layer=layer.number) if layer.attached else torch.zeros_like(i)
                each = layer.heads * (layer.key_dim + layer.value_dim)
                unit = self._unit_cost(layer).products
                work += Work(0, 0, times * each * int(pairs.sum()), times * unit * int(scored.sum()))
        return work

    def token(self, at: int) -> Work:
        """The work of one token after ``at`` others."""
        i, work = torch.tensor([at]), Work(1, self._weights * self._itemsize, 0, 0)
        for layer, times in _alike(self._layers, self._selection):
            keys, scored = i + 1, torch.zeros_like(i)
            if layer.attached:
                keys = self.keys(i, first=at, stop=at + 1, alone=True, layer=layer.number)
                scored = self.units(i, first=at, alone=True, layer=layer.number)
            each = layer.kv_heads * (layer.key_dim + layer.value_dim) * layer.itemsize
            unit = self._unit_cost(layer).read
            work += Work(0, 0, times * each * int(keys), times * unit * int(scored))
        return work

    def prompt(self, length: int, prefill_chunk: int) -> Work:
        """The work of a prompt that is read in prefill chunks of so many tokens.

        Raises:
            LongspanError: it is longer than is counted.
        """
        refuse_longer(length)
        work = Work(0, 0, 0, 0)
        for a in range(0, length, prefill_chunk):
            work += self.call(a, min(a + prefill_chunk, length))
        return work

    def _unit_cost(self, layer: LayerShape) -> UnitCost:
        selection = self._selection
        return selection.unit_cost(layer, self.reduced) if isinstance(selection, Choosing) else UnitCost(0, 0, 0)

    def _of(self, alone: bool) -> Selection:
        return self._selection.alone() if alone else self._selection


def refuse_longer(length: int) -> None:
    """Raise ``LongspanError`` for a length that is no number of tokens, or more than are counted one by one."""
    check_count("length", length)
    if length > MOST:
        raise LongspanError(
            f"length is at most {MOST:,} tokens here, not {length:,}; a longer text is no model's prompt"
        )


def _alike(layers: tuple[LayerShape, ...], selection: Selection) -> list[tuple[LayerShape, int]]:
    """Layers that compute the same, one of each and how many there are."""
    found: dict[tuple[object, ...], tuple[LayerShape, int]] = {}
    for layer in layers:
        chooses = isinstance(selection, Choosing) and selection.chooses_in(layer.number)
        key = (*(getattr(layer, name) for name in vars(layer) if name != "number"), chooses)
        first, times = found.get(key, (layer, 0))
        found[key] = first, times + 1
    return list(found.values())
