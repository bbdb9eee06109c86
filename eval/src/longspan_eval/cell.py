"""One place of a table: what is measured for it, and how that becomes its figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from longspan_eval.figure import Figure
from longspan_eval.measure import Measure
from longspan_eval.reduce import Reduce
from longspan_eval.sample import Sample


@dataclass(frozen=True)
class Cell:
    """One place of a table.

    Attributes:
        row, column: where it stands.
        reduce: how its samples become a figure; None if ``figure`` is given, or there is none.
        measures: what is measured for it. Cells may share measures: each is done once.
        base: measures that it is compared with; they are those of another cell.
        table: which table it is of, if a plan has several.
        figure: a figure that is computed, not measured.
        missing: why there is no figure; None if one can be measured.
        brief: the same in a few words, for the table; a row that has nothing else is this one cell.
    """

    row: str
    column: str
    reduce: Reduce | None = None
    measures: tuple[Measure, ...] = ()
    base: tuple[Measure, ...] = ()
    table: str = ""
    figure: Figure | None = None
    missing: str | None = None
    brief: str = "n/a"

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return ", ".join(part for part in (self.table, self.row, self.column) if part)

    def figure_of(
        self, samples: Iterable[Sample], base: Iterable[Sample] = (), *, planned: int = 0, skipped: str | None = None
    ) -> Figure:
        """The figure of what has been measured; a measure that failed makes the whole cell an error.

        Args:
            samples: of its measures, as far as there are any.
            base: of those that it is compared with.
            planned: how many samples it asks for.
            skipped: why the rest of it is not to be measured.
        """
        if self.missing is not None:
            return Figure(float("nan"), "text", reason=self.missing, brief=self.brief)
        if self.figure is not None:
            return self.figure
        assert self.reduce is not None, self.place
        own: Sequence[Sample] = list(samples)
        reason = skipped or next((one.error for one in own if one.error is not None), None)
        made = self.reduce([] if reason is not None else own, [one for one in base if one.error is None])
        return replace(made, measured=len(own), planned=planned, reason=reason)
