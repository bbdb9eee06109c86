"""A paper's table: cells, each with its measures, or the reason why nothing can be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.errors import LongspanError, did_you_mean
from longspan_eval.cell import Cell
from longspan_eval.datafile import check_folder
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.schedule import CellPlan, Request, Samples

STEPS = (1, 10, 50)  # so that a table whose time runs out says something of every cell


@dataclass(frozen=True)
class PaperTable:
    """One table (or figure) of a paper.

    Attributes:
        protocol: what is run, with the numbers at this model and scale.
        interleaved: rows take turns, round by round: for what is timed.
        lines: its shares are drawn as a line for each row.
        depths: its shares are drawn as tiles by depth and length, a panel for each row.
        pictures: draws into a folder what no sample holds, and says which files.
        window: the trained window in tokens that its numbers are of, if that is not the paper's. They are then
            scaled from it even if the paper's other numbers are as printed, but for ``--scale-to paper``.
        also: what else of the paper it makes again, by the paper's numbers.
        reads: reads all of its files that are in a data folder, and raises DataError if one of them is unusable; None:
            it has none.
    """

    number: str
    title: str
    protocol: Callable[[PaperSession], str]
    cells: Callable[[PaperSession], Sequence[Cell]]
    interleaved: bool = False
    lines: bool = False
    depths: bool = False
    pictures: Callable[[PaperSession, Path], list[str]] | None = None
    window: int | None = None
    also: tuple[str, ...] = ()
    reads: Callable[[Path], object] | None = None

    @property
    def name(self) -> str:
        """What it is called by in files: ``table-1``."""
        return self.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """As ``--tables`` takes it: by each of its numbers."""
        return tuple(number.lower().replace(" ", "-") for number in self.numbers)

    @property
    def numbers(self) -> tuple[str, ...]:
        """All that it makes again, by the paper's numbers."""
        return (self.number, *self.also)


@dataclass(frozen=True)
class Paper:
    """A paper whose tables are made again.

    Attributes:
        windows: the trained windows in tokens of its models. The first is the one that its numbers are scaled from.
        numbering: which edition the tables' numbers are those of.
        rows: what else to know of its rows.
        calibrated: whether a table has rows that score with reduced keys, for which a calibration can be given.
    """

    name: str
    title: str
    cite: str
    models: str
    hardware: str
    windows: tuple[int, ...]
    tables: tuple[PaperTable, ...]
    numbering: str = ""
    rows: str = ""
    calibrated: bool = False

    @property
    def window(self) -> int:
        """The window that its numbers are scaled from."""
        return self.windows[0]


def missing_row(row: str, column: str, needs: str, reason: str) -> Cell:
    """A row without figures, which says in its first ``column`` what it needs; and why, in a sentence."""
    return Cell(row, column, missing=reason, brief=f"needs {needs}")


def missing_file(session: PaperSession, row: str, column: str, file: str, source: str) -> Cell | None:
    """A row that needs a file or a folder: what it shows as long as that is not in the data folder, else None."""
    if session.data_dir is not None and (session.data_dir / file).exists():
        return None
    where = f"put it under that name into {_data_folder(session)}; it is from {source}"
    return missing_row(row, column, f"`{file}`", where)


def missing_files(session: PaperSession, row: str, column: str, files: Sequence[str], source: str) -> Cell:
    """A row that needs several files of a folder, none of which is in the data folder."""
    *others, last = (f"`{file}`" for file in files)
    where = f"put {', '.join(others)} and {last} under these names into {_data_folder(session)}; they are from {source}"
    return missing_row(row, column, f"{len(files)} files of `{files[0].rpartition('/')[0]}/`", where)


def _data_folder(session: PaperSession) -> str:
    return "a folder, and name that with --data-dir" if session.data_dir is None else str(session.data_dir)


def check_data(tables: Sequence[PaperTable], data_dir: Path | None) -> None:
    """Raise DataError for what is wrong with the files that tables read. It needs no model, as their cells do."""
    check_folder(data_dir)
    if data_dir is None:
        return
    for reads in dict.fromkeys(table.reads for table in tables):  # those that read the same files have the same one
        if reads is not None:
            reads(data_dir)


class PaperPlan(CellPlan):
    """A table's cells on a session, and the keys of what is measured for them."""

    def __init__(self, table: PaperTable, session: PaperSession, *, max_full_seconds: float | None = None) -> None:
        super().__init__(table.cells(session), session.keys, max_full_seconds=max_full_seconds)
        self.table, self.protocol = table, table.protocol(session)

    def missing(self, samples: Samples, *, retry_errors: bool = False) -> list[list[Request]]:
        """Missing requests, in the order in which to measure them."""
        longest = max((len(cell.measures) for cell in self.cells), default=0)
        steps = range(longest) if self.table.interleaved else STEPS
        return self.left(samples, retry_errors=retry_errors, steps=steps)


def select(paper: Paper, names: Sequence[str] | None) -> tuple[PaperTable, ...]:
    """The tables that have one of these names, in the paper's order; all unless given.

    Raises:
        LongspanError: there is no such table, or one is named twice.
    """
    if names is None:
        return paper.tables
    known = [name for table in paper.tables for name in table.names]
    for name in names:
        if name not in known:
            raise LongspanError(
                f"{paper.name} has no table {name!r}; it has {', '.join(known)}{did_you_mean(name, known)}"
            )
        if names.count(name) > 1:
            raise LongspanError(f"the table {name} is named twice")
    return tuple(table for table in paper.tables if not set(names).isdisjoint(table.names))
