"""The tables of ESA (Wang et al., 2025, arXiv 2502.14477), whose numbers are for windows of 8,192 and 32,768 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from longspan_eval.cell import Cell
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import found, mean_of_tasks
from longspan_eval.reproduce import esa_scores
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import (
    INSIDE,
    SAID_INSIDE,
    Methods,
    averaged,
    data_cells,
    grid,
    has_data,
    inside,
    means,
    read_tasks,
)
from longspan_eval.reproduce.esa_methods import (
    INITIAL,
    LOCAL,
    MISTRAL,
    TOP_K,
    WINDOW,
    K,
    heads,
    infinite,
    methods,
    own,
    proximities,
)
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, PaperTable, missing_files
from longspan_eval.spec import MethodSpec
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.longbench import LONGBENCH

LONG = [task.name for task in LONGBENCH]
_LONG_FILES = partial(read_tasks, LONG)
NEEDLES = "multi-needle-3"  # as in the paper's appendix C: 10 prompts of 3 needles make its thirtieths
NEEDLE_LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
MADE = {"kv": 500, "math-find": 350, "number": 590, "passkey": 590}  # InfiniteBench's made tasks, and their prompts
READ = ("infinitebench-en-mc", "infinitebench-code-debug")  # those from files
LIMIT = 256  # thousands of tokens, in which prompts of the published sizes fit whatever the tokenizer
COUNTS = ((128, 32, "counting-stars"), (256, 32, "counting-stars"), (128, 16, "counting-stars-16"),
          (256, 16, "counting-stars-16"))  # fmt: skip


def _tasks(session: PaperSession, made: Methods, tasks: Sequence[str], lengths: Sequence[int], n: int) -> list[Cell]:
    """Made tasks, each at lengths, a column for both."""
    cells = [cell for name in tasks for cell in grid(session, made, name, lengths, n, column=f"{name}, {{length}}")]
    return sorted(cells, key=lambda cell: list(made).index(cell.row))


def _inside(session: PaperSession, made: Methods) -> Methods:
    """The rows of the paper's own tasks; at the scale "quick" stock inside the window, too."""
    return session.choose(made, inside(made))


def _said(session: PaperSession) -> str:
    return session.choose("", f" {SAID_INSIDE}")


def _equal(session: PaperSession, scaled_to: int) -> Methods:
    return methods(session, session.tokens(scaled_to * K, WINDOW))


def _equal_said(session: PaperSession, scaled_to: int) -> str:
    numbers = ", ".join(f"{session.tokens(n, WINDOW):,} {what}" for n, what in
                        ((INITIAL, "first"), (LOCAL, "local"), (TOP_K, "chosen")))  # fmt: skip
    full = " and ".join(name for name in ("NTK", "YaRN") if name in _equal(session, scaled_to))
    target = f"{session.tokens(scaled_to * K, WINDOW):,} tokens (the paper's {scaled_to}k), however long a prompt is"
    return (
        f"Each method that selects keeps as many tokens: {numbers} (the paper, at both of its windows: 128, 4,096, "
        f"2,048), inside the window too.{f' {full}: scaled to {target}.' if full else ''}"
    )


# Tables 1, 6, 8 and 9: LongBench


def _longbench(session: PaperSession) -> Sequence[Cell]:
    return data_cells(session, _equal(session, 32), LONG, session.lengths([32 * K], WINDOW), session.at_most(5))


def _longbench_protocol(session: PaperSession) -> str:
    return (
        f"LongBench's 16 English tasks (not LongBench-E), cut in the middle to {session.tokens(32 * K, WINDOW):,} "
        f"tokens. {_equal_said(session, 32)}"
    )


def _on_longbench(session: PaperSession, made: Methods) -> Sequence[Cell]:
    made = {"stock": parse_spec("stock"), **made}
    data = data_cells(session, made, LONG, session.lengths([32 * K], WINDOW), session.at_most(5))
    if has_data(session, LONG):
        return data
    files = [task.data for task in LONGBENCH if task.data is not None]
    return [missing_files(session, "LongBench", data[0].column, [file.name for file in files], files[0].source)]


def _heads(session: PaperSession) -> Sequence[Cell]:
    return _on_longbench(session, heads(session))


def _heads_protocol(session: PaperSession) -> str:
    return (
        "ESA with scores in full; a token's is the largest of its heads' (individual), or their sum (uniform). "
        "LongBench at 32k, by task and on average."
    )


def _top_5(session: PaperSession) -> Sequence[Cell]:
    layers = session.model.config.get_text_config().num_hidden_layers
    more = f"middle_top_k=5,from_layer={min(4, layers // 2)}"
    rows = {"LM-Infinite": infinite(session), "LM-Infinite, top 5": infinite(session, more), "ESA": own(session)}
    return _on_longbench(session, rows)


def _top_5_protocol(session: PaperSession) -> str:
    return "LM-Infinite whose upper layers attend to the 5 best tokens in the middle, beside ESA; LongBench at 32k."


# Table 2: InfiniteBench


def official(session: PaperSession) -> bool:
    """Whether InfiniteBench's made tasks have the published sizes; else they are filled to a length."""
    return session.as_printed and session.scale == "paper"


def _filled(session: PaperSession, made: Methods, names: Sequence[str]) -> list[Cell]:
    """InfiniteBench's made tasks."""
    length = session.lengths([session.choose(LIMIT if official(session) else 200, 32) * K], WINDOW)
    ending, cells = "-official" if official(session) else "", []
    for name in names:
        cells += _tasks(session, made, [f"infinitebench-{name}{ending}"], length, session.prompts(MADE[name], 2))
    return sorted(cells, key=lambda cell: list(made).index(cell.row))


def _filled_said(session: PaperSession, names: Sequence[str]) -> str:
    counts = ", ".join(f"{name} {session.prompts(MADE[name], 2)}" for name in names)
    limit = f"of the published sizes, in at most {session.tokens(LIMIT * K, WINDOW):,} tokens"
    return f"prompts: {counts}, {limit if official(session) else 'filled to the length'}"


def _infinitebench(session: PaperSession) -> Sequence[Cell]:
    made, lengths = _equal(session, 200), session.lengths([session.choose(200, 32) * K], WINDOW)
    synthetic = _filled(session, _inside(session, made), list(MADE))
    read = data_cells(session, made, READ, lengths, session.at_most(5))
    absent = [cell for cell in read if cell.brief.startswith("needs")]
    named = [session.in_windows(length) for length in lengths]
    labels = {f"{label}, {length}": (label, length) for label in made for length in named}
    transposed = [
        replace(cell, row=labels[cell.column][0], column=f"{cell.row}, {labels[cell.column][1]}")
        for cell in read
        if cell.column in labels and not cell.row.startswith("mean") and cell not in absent
    ]
    rows = sorted([*synthetic, *transposed], key=lambda cell: list(_inside(session, made)).index(cell.row))
    files = [replace(cell, column=rows[0].column) for cell in absent]
    return [*averaged(rows, of=len(MADE) + len(READ)), *files]


def _infinitebench_protocol(session: PaperSession) -> str:
    return (
        f"Six tasks; {_filled_said(session, list(MADE))}; those from files are cut to "
        f"{session.tokens(session.choose(200, 32) * K, WINDOW):,} tokens; the mean is that of the tasks. "
        f"{_equal_said(session, 200)}{_said(session)}"
    )


# Table 3: Counting-Stars


def _stars(session: PaperSession) -> Sequence[Cell]:
    made = _equal(session, 200)
    tests = session.choose(COUNTS, ((64, 16, COUNTS[2][2]),))
    cells = [_counted(session, label, spec, *test) for label, spec in _inside(session, made).items() for test in tests]
    # Tests share lengths; the mean of all prompts is that of the tests, which have as many each.
    mean = [replace(cell, reduce=found) for cell in means(cells, "mean")]
    return [*cells, *mean]


def star_lengths(session: PaperSession, thousands: int, name: str) -> list[int]:
    """The lengths of a test: 32 evenly up to its context, those that are too short for its stars left out."""
    count = session.choose(32, 2)
    longest = session.tokens(thousands * K, WINDOW)
    lengths = [longest * (n + 1) // count for n in range(count)]
    return [length for length in lengths if session.unbuilt(TASKS[name], length) is None]


def _counted(session: PaperSession, label: str, spec: MethodSpec, thousands: int, stars: int, name: str) -> Cell:
    task, context, lengths = TASKS[name], session.tokens(thousands * K, WINDOW), star_lengths(session, thousands, name)
    column = f"({context:,}, {len(lengths)}, {stars})"
    if label == INSIDE:
        context = session.subject.window
        lengths = [context] if session.unbuilt(task, context) is None else []
    reason = session.unfit(spec, max(lengths)) if lengths else session.unbuilt(task, context)
    prompts = tuple(TaskPrompt(spec, length, n, task=task) for n, length in enumerate(lengths))
    return Cell(label, column, mean_of_tasks, () if reason else prompts, missing=reason)


def _stars_protocol(session: PaperSession) -> str:
    read = (
        " The copy of the paper at hand, whose digits are misread, prints the tests as (128k, 32, 32), (256k, 32, 32), "
        "(256k, 32, 16) and (256k, 32, 12), and in the caption 8 stars; the last is read as (128k, 32, 16), so that "
        "32 and 16 stars have the same two contexts."
    )
    return (
        "(context, prompts, stars): prompts at even lengths up to the context, one each, and the mean share of counts "
        "that are listed, of each test and of all prompts; lengths that are too short for so many stars are "
        f"left out (the paper: 32 prompts to 128k and 256k).{session.choose(read, '')} {_equal_said(session, 200)}"
        f"{_said(session)}"
    )


# Tables 4, 5 and 7: NeedleBench


def needle_lengths(session: PaperSession) -> list[int]:
    """The paper's ten, of which those that have no room for a prompt are left out."""
    lengths = session.lengths([n * K for n in session.choose(NEEDLE_LENGTHS, (16, 48))], WINDOW)
    return [length for length in lengths if session.unbuilt(TASKS[NEEDLES], length) is None] or lengths


def _needles(session: PaperSession) -> Sequence[Cell]:
    made = _equal(session, 200)
    cells = grid(session, _inside(session, made), NEEDLES, needle_lengths(session), session.prompts(10, 2))
    return averaged(cells)


def _needles_protocol(session: PaperSession) -> str:
    return (
        f"Three needles in prose, asked for at once, by length; {session.prompts(10, 2)} prompts a length, and the "
        f"mean of the lengths. {_equal_said(session, 200)}{_said(session)}"
    )


def _proximity(session: PaperSession) -> Sequence[Cell]:
    made = {"stock": parse_spec("stock"), **proximities(session)}
    lengths = session.choose(needle_lengths(session), session.lengths([32 * K], WINDOW))
    named = f"{NEEDLES}, {{length}}"
    needles = grid(session, _inside(session, made), NEEDLES, lengths, session.prompts(10, 2), column=named)
    needles = averaged(needles, f"{NEEDLES}, mean")
    values = _filled(session, _inside(session, made), ["kv"])
    return [*values, *needles]


def _scores_said(session: PaperSession) -> str:
    return "Scores are in full, as no calibration is given." if session.calibration is None else "Scores are reduced."


def _proximity_protocol(session: PaperSession) -> str:
    return (
        f"A token takes the best score within ε of it (Eq 8); all other tables have ε = 1, as the paper does not say "
        f"which it takes. {_scores_said(session)} InfiniteBench's KV ({_filled_said(session, ['kv'])}; a "
        f"value is right whole or not at all, by InfiniteBench's rule), and "
        f"NeedleBench's three needles, {session.prompts(10, 2)} prompts a length.{_said(session)}"
    )


ESA_PAPER = Paper(
    name="esa",
    title="Unshackling Context Length: An Efficient Selective Attention Approach through Query-Key Compression",
    cite="Wang et al., 2025, arXiv 2502.14477",
    models="Llama-3-8B-Instruct (window 8k) and Mistral-7B-Instruct-v0.2 (window 32k)",
    hardware="four A800s",
    windows=(WINDOW, MISTRAL),
    calibrated=True,
    tables=(
        PaperTable("Table 1", "LongBench", _longbench_protocol, _longbench, reads=_LONG_FILES),
        PaperTable(
            "Table 2", "InfiniteBench", _infinitebench_protocol, _infinitebench, reads=partial(read_tasks, READ)
        ),
        PaperTable("Table 3", "Counting-Stars", _stars_protocol, _stars),
        PaperTable("Table 4", "NeedleBench", _needles_protocol, _needles),
        PaperTable("Table 5", "Proximity influence", _proximity_protocol, _proximity, also=("Table 7",)),
        PaperTable(
            "Table 6", "Heads that choose together", _heads_protocol, _heads, also=("Table 8",), reads=_LONG_FILES
        ),
        PaperTable("Table 9", "LM-Infinite with the top 5 middle tokens", _top_5_protocol, _top_5, reads=_LONG_FILES),
        *esa_scores.TABLES,
    ),
)
