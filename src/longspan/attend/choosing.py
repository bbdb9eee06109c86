"""The part of a method that looks at queries and keys: choose, and attend to what was chosen."""

from __future__ import annotations

from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from longspan.attend.observing import Observer
from longspan.attend.ranks import Ranks
from longspan.calibration import Calibration
from longspan.choosing.base import Choosing
from longspan.choosing.own import says_itself
from longspan.choosing.queries import QueryBlock
from longspan.choosing.selector import SCORES_AT_ONCE, Chosen, Selector
from longspan.errors import AttachError
from longspan.kernels.dispatch import Impl, considered
from longspan.kernels.gathered import gather_into
from longspan.kernels.gpu import tiles
from longspan.kernels.gpu.launch import unsupported_scale
from longspan.memory import KVStore
from longspan.methods import Method
from longspan.positions import ChosenPositionMap
from longspan.rope import CosSin, Rope, Table, cos_sin

_ON_A_GPU = 4  # times as many scores are held there, as every run of queries costs dozens of launches


class Chooser:
    """Runs the selection of one method that chooses, for all layers of a model.

    Attributes:
        across: sums over the ranks that hold the other heads that choose together; None if this rank has all of them.
        observer: receives the choices, if somebody records them; see ``recording``.
        scores_at_once: scores that are held at once.
        many: whether runs of queries that choose may go through a kernel together; off, each goes by itself.
    """

    def __init__(
        self, method: Method, window: int, impl: Impl, calibration: Calibration | None, ranks: Ranks | None = None
    ) -> None:
        self.window, self.impl, self.calibration = window, impl, calibration
        self.selection = cast(Choosing, method.selection(window))
        self.positions = cast(ChosenPositionMap, method.positions(window))
        # The heads that choose together are on all ranks if they are those of a layer, and else on one.
        self.across = None if ranks is None or self.selection.share != "layer" else ranks.sum
        # By the angles, of which dynamic ones live no longer than a step.
        self._tables: WeakKeyDictionary[Table, dict[torch.device, CosSin]] = WeakKeyDictionary()
        self.observer: Observer | None = None
        self.many = True
        self.scores_at_once = SCORES_AT_ONCE

    def selector(self, layer: int, rope: Rope) -> Selector:
        """The selector of a layer, for a cache that is empty.

        Raises:
            AttachError: the heads that choose together are on several ranks, and it does not sum their scores.
        """
        selector = self.selection.selector(layer, rope, self.calibration)
        if self.across is not None:
            if not says_itself(selector, "sums_over_ranks"):
                raise AttachError(
                    f"the heads of a layer choose together, which are split over several processes, and "
                    f"{type(selector).__name__} does not sum their scores over those; run the model in one process"
                )
            selector.across = self.across
        return selector

    def selector_in(self, store: KVStore, layer: int, rope: Rope) -> Selector:
        """The selector of a layer by its store, which keeps it; made for a store that has none yet."""
        if store.index is None:
            store.index = self.selector(layer, rope)
        return cast(Selector, store.index)

    def add(self, out: Tensor, lse: Tensor, queries: QueryBlock, selector: Selector, row: int = 0) -> None:
        """Merge what queries chose into ``out`` ``[B, H, T, Dv]`` and ``lse`` ``[B, H, T]``, in place.

        Args:
            row: of the batch, which the rows of the layer's index begin at, for an observer.
        """
        selection = self.selection
        first = max(queries.start, selection.first_query)
        if first >= queries.stop or not selection.chooses_in(queries.layer):
            return
        scores = queries.q.shape[0] * queries.q.shape[1] * selector.columns(queries.stop)
        at_once = self.scores_at_once * (1 if queries.q.device.type == "cpu" else _ON_A_GPU)
        runs = selection.runs(first, queries.stop, max(1, at_once // max(scores, 1)))
        see = partial(selection.see, self.positions, queries)
        observer = self.recording()

        def seen(r0: int, r1: int, chosen: Chosen) -> None:
            if observer is not None and observer.wants(r1, queries.stop):
                assert isinstance(queries.batch, slice)
                about = {"layer": queries.layer, "row": row + queries.batch.start}
                about |= {"start": queries.start, "padding": queries.padding}
                observer.add((r0, r1), selection, chosen, **about)

        alone = observer is not None and observer.scores  # those that go together keep no scores
        together = self._together(out, lse, queries, selector) if len(runs) > 1 and self.many and not alone else None
        if together is not None:
            runs = runs[selector.add_many(out, lse, queries, runs, see, seen, together) :]
        for r0, r1 in runs:
            chosen = selector.choose(queries, r0, r1)
            seen(r0, r1, chosen)
            whole, own = (r0, r1) == (queries.start, queries.stop), queries.in_call(r0, r1)
            merged = (out, lse) if whole else (out[:, :, own], lse[:, :, own])
            gather_into(*merged, see(r0, r1, chosen.units), self.impl)

    def _together(self, out: Tensor, lse: Tensor, queries: QueryBlock, selector: Selector) -> Impl | None:
        """Which implementation runs several of the query chunks at once; None if each goes by itself."""
        if tiles.offloaded(queries.keys):
            return None
        if selector.across is not None:  # how many go together depends on the machine, and all ranks sum as often
            return None
        given = queries.q, queries.keys, queries.values
        able = (one for one in considered(self.impl, queries.q.device) if one.many_chunks)
        backend = next((one for one in able if one.unsupported(*given) is None), None)
        if backend is None:
            return None
        if backend.in_c:
            plain = out.dtype == queries.q.dtype and out.stride(-1) == 1 and lse.dtype == torch.float32
            return "auto" if plain else None
        return self.impl if unsupported_scale(queries.scale) is None else None

    def recording(self) -> Observer | None:
        """The observer, if it records the forward that this thread is in: all others run as if there were none."""
        observer = self.observer  # another thread may end the recording meanwhile
        return observer if observer is not None and observer.call is not None else None

    def places(self, i: Tensor) -> Tensor | None:
        """Where queries ``i`` ``[T]`` that come alone see what they choose from, ``[T, m]`` or ``[1, m]`` int64.

        None if that depends on what they choose.
        """
        positions = self.selection.places(self.positions, i)
        return positions[:1] if positions is not None and bool((positions == positions[:1]).all()) else positions

    def window_table(self, table: Table, device: torch.device) -> CosSin:
        """cos and sin of every position in the window, ``[L, r / 2]`` each; of more if units are stored in blocks."""
        tables = self._tables.setdefault(table, {})
        if device not in tables:
            more = (self.positions.stored_in(self.selection.always()) - 1) * self.selection.size
            tables[device] = cos_sin(table, torch.arange(self.window + more), device)
        return tables[device]
