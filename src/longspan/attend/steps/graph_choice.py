"""The part of a recorded step that looks at queries and keys: choose, and attend to what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from longspan.attend.choosing import Chooser
from longspan.attend.layer import LayerCall
from longspan.attend.steps.filled import HostFilled
from longspan.attend.tables import Tables
from longspan.choosing.by_row import check_positions, moved
from longspan.choosing.queries import QueryBlock, Shared
from longspan.choosing.selector import Selector
from longspan.errors import LongspanError
from longspan.kernels import cpu
from longspan.kernels.gathered import PerQueryChunk, PerRow, triton
from longspan.kernels.gpu.launch import merge_into
from longspan.memory import KVStore

Run = tuple[int, int, int]  # the first row, one past the last, and their padding


def unrecordable_choice(name: str, chooser: Chooser) -> str | None:
    """Why the choice of a method of this name is not the same operations at every length, or None."""
    if (reason := chooser.selection.unrecordable_reason()) is not None:
        return f"{name} {reason}"
    if chooser.across is not None:
        return "the scores of a layer's heads are summed over ranks"
    if chooser.places(torch.zeros(1, dtype=torch.int64)) is None:
        return f"the positions of chosen keys depend on which keys {name} chooses; use another remap"
    return None


class RecordedChoice:
    """What one new token chooses in each layer. What depends on the length lies in tensors that ``move`` fills.

    Those are the place of the new token's inputs among those that an index keeps, one past the last candidate of each
    run of rows, and the positions that its units are seen from. Scores are those of all entries that there is memory
    for, of which the ones from the stop on do not count.

    Args:
        runs: rows with equal padding.
        layers: of the model, by whose numbers the places are.
        past: tokens stored before the first one that it is for.
    """

    def __init__(self, tables: Tables, runs: Sequence[Run], layers: int, device: torch.device, past: int) -> None:
        assert tables.chooser is not None
        self._chooser, self._tables, self._runs = tables.chooser, tables, runs
        self._chooses = self._which_choose(past)
        self._shared = Shared()  # what it holds depends on no token: positions that scores see all keys from
        count = self._chooser.selection.chosen
        self._filled = HostFilled(
            device, ((layers, 1), torch.int64), ((len(runs), 1), torch.int64), ((len(runs), 1, count), torch.int64)
        )
        self._kept_at, self._stops, self._positions = self._filled.device

    def bands(self, numbers: range) -> range:
        """Which bands of all ``numbers`` any row may use: those of queries that keep every key come first."""
        selection = self._chooser.selection
        first = selection.first_query
        if not all(self._chooses):
            return numbers
        own = self._tables.positions.all_bands(selection.alone().kept(first, first + 1))
        return numbers[len(numbers) - len(own) :]

    def reach(self, capacity: int) -> int:
        """The most keys that a row sees in those bands."""
        kept = self._chooser.selection.always()
        return min(capacity, kept.head + kept.span) if all(self._chooses) and kept.span is not None else capacity

    def holds(self, past: int) -> bool:
        """Whether the same rows choose after ``past`` stored tokens."""
        return self._which_choose(past) == self._chooses

    def move(self, past: int, kept_at: Sequence[int]) -> None:
        """See ``RecordedStep.move``."""
        places, stops, positions = self._filled.host
        places[:, 0] = torch.tensor(kept_at)
        for run, (_, _, pad) in enumerate(self._runs):
            if self._chooses[run]:
                token = torch.tensor([past - pad])
                stops[run] = self._chooser.selection.stops(token)
                at = self._chooser.places(token)
                assert at is not None
                check_positions(at, self._chooser.window, self._chooser.positions)
                positions[run] = at
        self._filled.fill()

    def take(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, store: KVStore, place: Tensor) -> Selector:
        """Write what the index keeps of the new token, ``[B, H, 1, D]`` each, channels as in ``Rope.pair``.

        Args:
            place: ``[1]`` int64, that token's.
        """
        selector = self._chooser.selector_in(store, layer.number, layer.rope)
        with cpu.disabled():  # under Triton's interpreter: what runs in C is no part of a recording
            selector.take_recorded(q, k, v, layer.rope.paired(), place, self._kept_at[layer.number])
        return selector

    def add(
        self, out: Tensor, lse: Tensor, run: int, q: Tensor, layer: LayerCall, store: KVStore, selector: Selector
    ) -> None:
        """Merge what the rows of a run choose into ``out`` ``[B, H, 1, Dv]`` and ``lse`` ``[B, H, 1]``, in place.

        Args:
            q: ``[B, H, 1, D]``, unrotated, of these rows.
        """
        if not self._chooses[run]:
            return
        a, b, pad = self._runs[run]
        table, tables = self._tables.angles(layer.rope.table), self._tables
        *keys, values = (x[a:b, :, pad:] for x in store.allocated)
        queries = QueryBlock(
            q=q,
            keys=keys[tables.chosen_rotation],
            values=values,
            scored=None if tables.scored_rotation is None else keys[tables.scored_rotation],
            batch=slice(a, b),
            start=0,
            stop=1,
            rope=layer.rope.paired().with_table(table),
            scale=layer.scale,
            softcap=layer.softcap,
            layer=layer.number,
            padding=pad,
            table=partial(self._chooser.window_table, table, q.device),
            shared=self._shared,
        )
        with cpu.disabled():
            chosen = selector.choose_recorded(queries, self._stops[run])
        job = self._seen(queries, chosen, self._positions[run])
        if (reason := triton.unsupported_reason(job)) is not None:
            raise LongspanError(f"a recorded step needs the Triton kernel, which cannot run here: {reason}")
        merge_into(out, lse, *triton.run(job))

    def _seen(self, queries: QueryBlock, chosen: Tensor, positions: Tensor) -> PerRow | PerQueryChunk:
        """The kernel's job for what was chosen, seen from ``positions`` ``[1, m]``."""
        table, common = queries.table(), queries.gathered(queries.start, queries.stop)
        if self._chooser.selection.by_query_chunk:  # all are seen from one position
            cos, sin = (x.index_select(0, positions[0, :1]) for x in table)
            return PerQueryChunk(tokens=chosen, cos_sin=((cos, sin),), **common)
        size, block = self._chooser.selection.size, self._chooser.positions.stored_in(self._chooser.selection.always())
        at = moved(positions, chosen, size, block)
        return PerRow(units=chosen, size=size, positions=at, table=table, **common)

    def _which_choose(self, past: int) -> tuple[bool, ...]:
        first = self._chooser.selection.first_query
        return tuple(past - pad >= first for _, _, pad in self._runs)
