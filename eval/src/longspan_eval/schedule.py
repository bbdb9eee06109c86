"""The measures of a run for its cells, their order, and their results so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longspan_eval.cell import Cell
from longspan_eval.estimate import SKIPPED, Pace, over_limit, takes_all
from longspan_eval.figure import Figure
from longspan_eval.measure import Measure
from longspan_eval.sample import Sample
from longspan_eval.subject import Subject

STEPS = (10, 50)  # a cell is measured in parts that end at these: a table says something long before it is whole

Rank = Callable[[Cell, int], tuple[float, ...]]  # of a cell and the number of its part; the lowest comes first
Samples = Mapping[str, Sample]  # by key


@dataclass(frozen=True)
class Request:
    """A measure whose sample is missing.

    Attributes:
        cell: the number of its cell in the plan. After an error no more of a cell is measured.
    """

    key: str
    measure: Measure
    cell: int


class CellPlan:
    """Cells, and the keys of what is measured for them.

    Args:
        key: makes the key of a measure's sample.
        max_full_seconds: cells of full attention whose prompts take longer are marked instead of measured.
    """

    def __init__(
        self, cells: Sequence[Cell], key: Callable[[Measure], str], *, max_full_seconds: float | None = None
    ) -> None:
        self.cells, self.limit = list(cells), max_full_seconds
        places = [(cell.table, cell.row, cell.column) for cell in self.cells]
        if len(set(places)) < len(places):
            raise RuntimeError("two cells have one place")
        keys = {id(one): key(one) for one in {id(one): one for one in self._measures()}.values()}
        self.keys = [tuple(dict.fromkeys(keys[id(one)] for one in cell.measures)) for cell in self.cells]
        self._base = [tuple(keys[id(one)] for one in cell.base) for cell in self.cells]
        self._requests = [
            {keys[id(one)]: Request(keys[id(one)], one, n) for one in cell.measures}
            for n, cell in enumerate(self.cells)
        ]

    def left(
        self,
        samples: Samples,
        *,
        retry_errors: bool = False,
        rank: Rank = lambda cell, part: (part,),
        steps: Collection[int] = STEPS,
    ) -> list[list[Request]]:
        """The requests left to measure, in lists of one cell; those that several cells share come once.

        A cell with an error is done, unless errors are to be tried again.

        Args:
            steps: a cell's parts end at these numbers of samples.
        """
        parts: list[tuple[tuple[float, ...], int, list[Request]]] = []
        for n, cell in enumerate(self.cells):
            if self.skipped(n, samples) is not None or (self.failed(n, samples) and not retry_errors):
                continue
            requests = list(self._requests[n].values())
            edges = [0, *(step for step in sorted(steps) if step < len(requests)), len(requests)]
            for part, (first, stop) in enumerate(pairwise(edges)):
                parts.append((rank(cell, part), len(parts), requests[first:stop]))
        seen = {key for key, sample in samples.items() if sample.error is None or not retry_errors}
        ordered = []
        for _, _, requests in sorted(parts, key=lambda part: part[:2]):
            fresh = [request for request in requests if request.key not in seen]
            seen.update(request.key for request in fresh)
            if fresh:
                ordered.append(fresh)
        return ordered

    def failed(self, n: int, samples: Samples) -> bool:
        """Whether one of a cell's measures failed, so that the others would too."""
        return any(samples[key].error is not None for key in self.keys[n] if key in samples)

    def measured(self, n: int, samples: Samples) -> list[Sample]:
        """The samples of cell ``n``, as far as there are any."""
        return [samples[key] for key in self.keys[n] if key in samples]

    def figure(self, n: int, samples: Samples) -> Figure:
        """The figure of cell ``n``."""
        base = [samples[key] for key in self._base[n] if key in samples]
        return self.cells[n].figure_of(
            self.measured(n, samples), base, planned=len(self.keys[n]), skipped=self.skipped(n, samples)
        )

    def figures(self, samples: Samples) -> list[tuple[Cell, Figure]]:
        """Every cell with its figure."""
        return [(cell, self.figure(n, samples)) for n, cell in enumerate(self.cells)]

    def pace(self, subject: Subject, samples: Samples) -> Pace:
        """How long measures take, from those that have been made."""
        requests = {key: one.measure for some in self._requests for key, one in some.items()}
        return Pace(subject, [(one, samples[key]) for key, one in requests.items() if key in samples])

    # Full attention that is not worth its time

    def too_long(self, pace: Pace, request: Request) -> str | None:
        """Why a prompt is not worth its time, from what its method took so far; None if it is, or nothing is known."""
        return over_limit(pace, request.measure, self.limit)

    def key_for(self, request: Request, sample: Sample) -> str:
        """Under which key to keep a sample; that a cell was skipped holds for this time limit alone."""
        skipped = sample.error is not None and sample.error.startswith(f"{SKIPPED}:")
        return self._skip_key(request.key) if skipped else request.key

    def skipped(self, n: int, samples: Samples) -> str | None:
        """Why cell ``n`` is not measured for its time, or None."""
        if self.limit is None or not any(map(takes_all, self.cells[n].measures)):
            return None
        if all(key in samples for key in self.keys[n]):
            return None  # measured under a wider limit
        kept = (samples.get(self._skip_key(key)) for key in self.keys[n])
        return next((sample.error for sample in kept if sample is not None), None)

    def _skip_key(self, key: str) -> str:
        return f"{key}-over-{self.limit:g}"

    def _measures(self) -> Iterator[Measure]:
        for cell in self.cells:
            yield from cell.measures
            yield from cell.base
