"""The cells of tables: of tasks, of perplexity, of times, by row and length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from longspan_eval.cell import Cell
from longspan_eval.datafile import read_file, read_records
from longspan_eval.measure import Measure, TaskPrompt
from longspan_eval.reduce import found, mean_of_tasks, window_perplexity
from longspan_eval.reproduce.session import PaperSession, why_unbuilt
from longspan_eval.reproduce.table import missing_file
from longspan_eval.reproduce.texts import Corpus
from longspan_eval.spec import MethodSpec, parse_spec
from longspan_eval.studies.eval import drawn
from longspan_eval.tasks import TASKS
from longspan_eval.windows import PERPLEXITY, Mode, WindowText, check_texts, sources, windows_of

INSIDE = "stock, inside the window"  # a row of what the model can do without any method, at one window
SAID_INSIDE = "Stock inside the window is what the model can do at all: what it cannot do there, no method can add."

Methods = Mapping[str, MethodSpec]  # by what a table calls them


def inside(methods: Methods) -> dict[str, MethodSpec]:
    """The rows, after the first of which comes stock at the window."""
    (label, first), *rest = methods.items()
    return {label: first, INSIDE: parse_spec("stock"), **dict(rest)}


def grid(
    session: PaperSession,
    methods: Methods,
    name: str,
    lengths: Sequence[int],
    samples: int,
    depths: Sequence[float | None] = (None,),
    column: str = "{length}",
) -> list[Cell]:
    """Cells of ``samples`` prompts (at each depth, if depths are given) of a synthetic task, by row and length.

    The row ``INSIDE`` has prompts of the window, whatever the column says.
    """
    task, cells = TASKS[name], []
    for label, spec in methods.items():
        for length in lengths:
            tokens = session.subject.window if label == INSIDE else length
            reason = session.unfit(spec, tokens) or session.unbuilt(task, tokens)
            prompts = () if reason else tuple(
                TaskPrompt(spec, tokens, n * len(depths) + d, task=task, depth=depth)
                for n in range(samples)
                for d, depth in enumerate(depths)
            )  # fmt: skip
            cells.append(Cell(label, column.format(length=session.in_windows(length)), found, prompts, missing=reason))
    return cells


def averaged(cells: Sequence[Cell], column: str = "mean", of: int | None = None) -> list[Cell]:
    """The cells, and for each row the mean of its tasks and lengths, which no prompt is measured for again."""
    return [*cells, *means(cells, column, of=of)]


def means(
    cells: Sequence[Cell], column: str, only: Callable[[Measure], bool] | None = None, of: int | None = None
) -> list[Cell]:
    """For each row the mean of its tasks and lengths.

    Args:
        only: of these prompts.
        of: how many cells a whole row has, if missing files leave some out.
    """
    made = []
    for row in dict.fromkeys(cell.row for cell in cells):
        whole = [cell for cell in cells if cell.row == row]
        own = [cell for cell in whole if cell.missing is None]
        count = len(whole) if of is None else of
        named = f"{column} of {len(own)} of {count}" if len(own) < count else column
        mean = _mean(own, row, named, only)
        made += [mean] if mean.measures else []
    return made


def _mean(cells: Sequence[Cell], row: str, column: str, only: Callable[[Measure], bool] | None = None) -> Cell:
    every = (one for cell in cells for one in cell.measures)
    return Cell(row, column, mean_of_tasks, tuple(every if only is None else filter(only, every)))


def has_data(session: PaperSession, tasks: Sequence[str]) -> bool:
    """Whether the file of one of these tasks is at hand."""
    files = [task.data for name in tasks if (task := TASKS[name]).data is not None]
    return any(missing_file(session, "", "", file.name, file.source) is None for file in files)


def data_cells(
    session: PaperSession, methods: Methods, tasks: Sequence[str], lengths: Sequence[int], samples: int | None
) -> list[Cell]:
    """Cells of tasks from files: a row for each task, a column for each method and length, and a row of their means.

    The column of ``INSIDE`` has prompts cut to the window, whatever the lengths are. A file that is not there makes a
    row that says so. One that is not as its task needs it is an error at once.

    Args:
        samples: records a cell; None: all of a file.

    Raises:
        DataError: a file is there, and cannot be used.
    """
    window = session.subject.window
    at = [(label, spec, window if label == INSIDE else length) for length in lengths for label, spec in methods.items()]
    columns = [(f"{label}, {session.in_windows(length)}", spec, length) for label, spec, length in dict.fromkeys(at)]
    files = {name: task.data for name in tasks if (task := TASKS[name]).data is not None}
    some = has_data(session, tasks)
    cells: list[Cell] = []
    for name, file in files.items():
        task = TASKS[name]
        absent = missing_file(session, name, columns[0][0] if some else "score", file.name, file.source)
        if absent is not None:
            cells.append(absent)
            continue
        records = read_records(task, session.data_dir)
        picked = drawn(len(records), samples)
        cut_to = {length for _, _, length in columns}
        unbuilt = {length: why_unbuilt(session.tokenizer, task, length, records[picked[0]]) for length in cut_to}
        for column, spec, length in columns:
            reason = session.unfit(spec, length) or unbuilt[length]
            prompts = tuple(TaskPrompt(spec, length, n, task=task, record=records[n]) for n in picked)
            cells.append(Cell(name, column, found, () if reason else prompts, missing=reason))
    for column, _, _ in columns if some else ():
        own = [cell for cell in cells if cell.column == column and cell.missing is None]
        if own:
            few = f" of {len(own)} of {len(files)}" if len(own) < len(files) else ""
            cells.append(_mean(own, f"mean{few}", column))
    return cells


def read_tasks(names: Sequence[str], data_dir: Path) -> None:
    """Read the files of these tasks, as far as they are there; see ``PaperTable.reads``."""
    for file in (TASKS[name].data for name in names):
        if file is not None and (data_dir / file.name).exists():
            read_file(file, data_dir)


def read_texts(corpora: Sequence[Corpus], data_dir: Path) -> None:
    """Read the documents of these corpora, as far as they are there; see ``PaperTable.reads``."""
    for folder in (data_dir / corpus.folder for corpus in corpora):
        if folder.exists():
            check_texts([folder])


def perplexity_cells(
    session: PaperSession,
    methods: Methods,
    corpora: Sequence[Corpus],
    lengths: Sequence[int],
    *,
    stride: int,
    mode: Mode,
    windows: int | None,
    row: str = "{corpus}{documents}: {label}",
    column: str = "{length}",
) -> list[Cell]:
    """Cells of sliding-window perplexity by corpus, row and length.

    Each document of a corpus has windows of its own, so that none runs over a border. Prompts, windows and draw are
    those of ``longspan eval perplexity``, whose figures they equal. The bundled model's held-out text, which is one
    text of many documents, stands for corpora that are not there, under its own name.

    Args:
        stride: tokens between two windows.
        windows: so many of a corpus at most, drawn from all of it; None: as many as it has.
        row, column: how cells are called; ``{documents}`` is how many of a corpus' are long enough and read.

    Raises:
        DataError: a file is there, and cannot be used.
    """
    texts: list[tuple[Corpus, list[WindowText]]] = []
    absent: list[Cell] = []
    for corpus in corpora:
        first = column.format(length=session.in_windows(lengths[0]), documents="")
        missing = missing_file(session, corpus.name, first, corpus.folder, corpus.source)
        if missing is not None:
            absent.append(missing)
        elif session.data_dir is not None:
            documents = sources([session.data_dir / corpus.folder])
            texts.append((corpus, [WindowText(corpus.name, one.ref) for one in documents]))
    texts = texts or [(Corpus(one.name, "", ""), [one]) for one in sources([])]
    longest = max((length for length in lengths if session.too_long(length) is None), default=0)
    cells = []
    for corpus, documents in texts:
        read = list(islice(_long_enough(session, documents, longest), corpus.documents)) if longest else []
        count = "" if len(documents) == 1 or not longest else f", {len(read)} of {len(documents)} documents"
        records = [
            record
            for one in read
            for record in windows_of(session.tokenizer, one, longest=longest, stride=stride, mode=mode)
        ]
        # All of them come document by document, each of which is then tokenized once.
        picked = range(len(records)) if windows is None else drawn(len(records), windows)
        reduce = {length: window_perplexity(dict(enumerate(records)), length) for length in lengths}
        short = None if records or not longest else _too_short(session, corpus, documents, longest)
        for label, spec in methods.items():
            for length in lengths:
                reason = session.unfit(spec, length) or short
                prompts = tuple(TaskPrompt(spec, length, n, task=PERPLEXITY, record=records[n]) for n in picked)
                shown = session.in_windows(length)
                named = {"corpus": corpus.name, "documents": count, "label": label, "length": shown}
                where = row.format(**named), column.format(**named)
                cells.append(Cell(*where, reduce[length], () if reason else prompts, missing=reason))
    return cells + absent


def said_borders(session: PaperSession, corpora: Sequence[Corpus]) -> str:
    """A protocol's words on the borders between documents."""
    absent = [missing_file(session, corpus.name, "", corpus.folder, corpus.source) for corpus in corpora]
    if all(absent):
        return "the held-out text is many documents in a row, whose borders windows cross"
    return "none runs over the end of a document"


def _long_enough(session: PaperSession, documents: Sequence[WindowText], tokens: int) -> Iterator[WindowText]:
    return (one for one in documents if one.tokens(session.tokenizer) >= tokens)


def _too_short(session: PaperSession, corpus: Corpus, documents: Sequence[WindowText], tokens: int) -> str:
    most = max(one.tokens(session.tokenizer) for one in documents)
    return f"{corpus.name} has {most:,} tokens, too few for a window of {tokens:,}"
