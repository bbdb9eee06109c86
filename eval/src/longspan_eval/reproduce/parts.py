"""What tables are put together from: cells of tasks, of perplexity, of times, by row and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longspan_eval.datafile import read_records
from longspan_eval.plan import drawn
from longspan_eval.reproduce.figures import FOUND, PERPLEXITY, Show
from longspan_eval.reproduce.lab import Lab, why_unbuilt
from longspan_eval.reproduce.measures import Asked
from longspan_eval.reproduce.table import Cell, missing_file
from longspan_eval.reproduce.texts import Corpus
from longspan_eval.rows import Row
from longspan_eval.task import Task
from longspan_eval.tasks import TASKS
from longspan_eval.windows import PERPLEXITY as TASK
from longspan_eval.windows import Mode, Source, sources, windows_of

INSIDE = "stock, inside the window"  # a row of what the model can do without any method, at one window
SAID_INSIDE = "Stock inside the window is what the model can do at all: what it cannot do there, no method can add."

Rows = Mapping[str, Row]  # by what a table calls them


def too_long(lab: Lab, length: int) -> str | None:
    """Why a cell of that length is left out, or None."""
    if lab.max_length is not None and length > lab.max_length:
        return f"{length:,} tokens are more than --max-length {lab.max_length:,}"
    return None


def task_cell(
    lab: Lab,
    label: str,
    column: str,
    row: Row,
    task: Task,
    length: int,
    samples: int,
    depths: Sequence[float | None] = (None,),
    show: Show = FOUND,
) -> Cell:
    """A cell of ``samples`` prompts (at each depth, where depths are given) of a made task."""
    reason = too_long(lab, length) or _unfit(row, lab, length) or lab.unbuilt(task, length)
    if reason is not None:
        return Cell(label, column, missing=reason)
    asked = tuple(
        Asked(row, task, length, n * len(depths) + d, depth) for n in range(samples) for d, depth in enumerate(depths)
    )
    return Cell(label, column, show, asked)


def grid(
    lab: Lab,
    rows: Rows,
    task: str,
    lengths: Sequence[int],
    samples: int,
    depths: Sequence[float | None] = (None,),
    column: str = "{length:,}",
) -> list[Cell]:
    """Cells of a made task by row and length; the row ``INSIDE`` is asked at the window, whatever the column says."""
    return [
        task_cell(
            lab,
            label,
            column.format(length=length),
            row,
            TASKS[task],
            lab.subject.window if label == INSIDE else length,
            samples,
            depths,
        )
        for label, row in rows.items()
        for length in lengths
    ]


def data_cells(lab: Lab, rows: Rows, tasks: Sequence[str], lengths: Sequence[int], samples: int | None) -> list[Cell]:
    """Cells of tasks from files: a row for each task, a column for each of ``rows`` and length.

    A file that is not there makes a row that says so. One that is not as its task needs it is an error at once.

    Args:
        samples: records a cell; None: all of a file.

    Raises:
        DataError: a file is there, and cannot be used.
    """
    columns = [(f"{label}, {length:,}", row, length) for length in lengths for label, row in rows.items()]
    files = {name: task.data for name in tasks if (task := TASKS[name]).data is not None}
    some = any(missing_file(lab, name, "", file.name, file.source) is None for name, file in files.items())
    cells: list[Cell] = []
    for name, file in files.items():
        task = TASKS[name]
        absent = missing_file(lab, name, columns[0][0] if some else "score", file.name, file.source)
        if absent is not None:
            cells.append(absent)
            continue
        records = read_records(task, lab.data_dir)
        picked = drawn(len(records), samples)
        for column, row, length in columns:
            reason = (
                too_long(lab, length)
                or _unfit(row, lab, length)
                or why_unbuilt(lab.tokenizer, task, length, records[picked[0]])
            )
            asked = () if reason else tuple(Asked(row, task, length, n, None, records[n]) for n in picked)
            cells.append(Cell(name, column, FOUND, asked, missing=reason))
    return cells


def perplexity_cells(
    lab: Lab,
    rows: Rows,
    corpora: Sequence[Corpus],
    lengths: Sequence[int],
    *,
    stride: int,
    mode: Mode,
    windows: int | None,
) -> list[Cell]:
    """Cells of sliding-window perplexity by text, row and length.

    Prompts, windows and draw are those of ``longspan eval perplexity``, whose figures they equal. A text of the
    standard library stands for texts that are not there, under its own name.

    Args:
        stride: tokens between two windows.
        windows: so many at most, drawn from the whole text; None: as many as it has.

    Raises:
        DataError: a file is there, and cannot be used.
    """
    found: list[Source] = []
    absent: list[Cell] = []
    fit = [length for length in lengths if too_long(lab, length) is None]
    for corpus in corpora:
        missing = missing_file(lab, corpus.name, f"{lengths[0]:,}", corpus.file, corpus.source)
        if missing is not None:
            absent.append(missing)
        elif lab.data_dir is not None:
            (file,) = sources([lab.data_dir / corpus.file])
            found.append(Source(corpus.name, file.ref))
    made = []
    for text in found or sources([]):
        total, longest = text.tokens(lab.tokenizer), max(fit, default=0)
        records = windows_of(lab.tokenizer, text, longest=longest, stride=stride, mode=mode) if fit else []
        picked = drawn(len(records), windows)
        short = f"{text.name} has {total:,} tokens, too few for a window of {longest:,}" if not records else None
        for label, row in rows.items():
            for length in lengths:
                reason = too_long(lab, length) or _unfit(row, lab, length) or short
                asked = tuple(Asked(row, TASK, length, n, None, records[n]) for n in picked)
                where = f"{text.name}: {label}", f"{length:,}"
                made.append(Cell(*where, PERPLEXITY, () if reason else asked, missing=reason))
    return made + absent


def _unfit(row: Row, lab: Lab, length: int) -> str | None:
    """Why a row's parameters cannot be at the model's window, or None."""
    problem = lab.parameters(row, length)["parameters"].get("error")
    return None if problem is None else str(problem)
