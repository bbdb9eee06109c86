"""What a paper's table is here: cells, each with what is measured for it, or the reason why nothing can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longspan_eval.reproduce.figures import Figure, Show
from longspan_eval.reproduce.lab import Lab, Measure

Chart = Literal["lines"]


@dataclass(frozen=True)
class Cell:
    """One place of a table.

    Attributes:
        row, column: where it stands.
        show: how its samples become a figure; None where ``figure`` is given.
        measures: what is measured for it. Cells may share measures: each is done once.
        figure: a figure that is computed, not measured.
        missing: why there can be no figure; None where there can.
        brief: the same in a few words, for the table; a row that has nothing else is this one cell.
    """

    row: str
    column: str
    show: Show | None = None
    measures: tuple[Measure, ...] = ()
    figure: Figure | None = None
    missing: str | None = None
    brief: str = "n/a"


@dataclass(frozen=True)
class Table:
    """One table (or figure) of a paper.

    Attributes:
        name: as ``--tables`` takes it.
        title: what it is about.
        where: where it stands in the paper, such as ``"Table 1"``.
        protocol: what is run, with the numbers at this model and scale.
        cells: its cells, in the order in which rows and columns are to stand.
        interleaved: rows take turns, round by round: for what is timed.
        chart: how its figures are drawn, or None.
        pictures: draws what takes no measuring into a folder, and says which files.
        whole: whether all its figures are among the published ones at hand.
    """

    name: str
    title: str
    where: str
    protocol: Callable[[Lab], str]
    cells: Callable[[Lab], Sequence[Cell]]
    interleaved: bool = False
    chart: Chart | None = None
    pictures: Callable[[Lab, Path], list[str]] | None = None
    whole: bool = False


@dataclass(frozen=True)
class Paper:
    """A paper whose tables are made again.

    Attributes:
        name: as ``longspan reproduce`` takes it.
        title, cite: of the paper.
        models, hardware: what its figures are of, as far as a source at hand says.
        window: the window in tokens that its numbers are scaled from.
        tables: in the order in which they are measured.
    """

    name: str
    title: str
    cite: str
    models: str
    hardware: str
    window: int
    tables: tuple[Table, ...]


def missing_row(row: str, column: str, needs: str, reason: str) -> Cell:
    """A row without figures, which says in its first ``column`` what it needs; and why, in a sentence."""
    return Cell(row, column, missing=reason, brief=f"needs {needs}")


def missing_file(lab: Lab, row: str, column: str, file: str, source: str) -> Cell | None:
    """A row that needs a file: what it shows as long as the file is not in the data folder, else None."""
    if lab.data_dir is not None and (lab.data_dir / file).is_file():
        return None
    place = "a folder, and name that with --data-dir" if lab.data_dir is None else str(lab.data_dir)
    return missing_row(row, column, f"`{file}`", f"put it under that name into {place}; it is from {source}")


def order(cells: Sequence[Cell], interleaved: bool = False) -> list[tuple[int, Measure]]:
    """What to measure, each with the number of its cell: every cell's first, then up to 10, then up to 50, then all.

    So a table whose time runs out says something of every cell. Where cells are ``interleaved`` they take turns.
    """
    longest = max((len(cell.measures) for cell in cells), default=0)
    edges = list(range(longest + 1)) if interleaved else sorted({0, *(n for n in (1, 10, 50) if n < longest), longest})
    return [
        (n, measure)
        for first, last in zip(edges, edges[1:], strict=False)
        for n, cell in enumerate(cells)
        for measure in cell.measures[first:last]
    ]
