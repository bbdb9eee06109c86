"""The tables of LongHeads (Lu et al., 2024, arXiv 2402.10685), whose numbers are for a window of 4,096 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from longspan_eval.cell import Cell
from longspan_eval.reproduce import longheads_heads, longheads_takes
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import (
    INSIDE,
    SAID_INSIDE,
    averaged,
    data_cells,
    grid,
    has_data,
    perplexity_cells,
    read_tasks,
    read_texts,
    said_borders,
)
from longspan_eval.reproduce.longheads_methods import (
    SAID_LOCAL,
    SAID_THEM,
    WINDOW,
    ablations,
    chunk_length,
    few,
    half,
    halved,
    lengths_of,
    methods,
    ntk_said,
)
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, PaperTable, missing_row
from longspan_eval.reproduce.texts import PG19_TEST, PROOF_PILE
from longspan_eval.studies.eval import spread
from longspan_eval.windows import STANDARD

K = 1000  # the paper's "1k to 50k"; lengths such as 32k of a model are 1,024s

PI_REASON = "PI needs a model that was fine-tuned with it, and rows of fine-tuned models are quoted, never rerun"
LONGBENCH = [  # LongBench-E for the tasks that it has, as the paper's appendix B.2 says
    "narrativeqa", "e-qasper", "e-multifieldqa-en", "e-hotpotqa", "e-2wikimqa", "musique", "e-gov-report", "qmsum",
    "e-multi-news", "e-trec", "e-triviaqa", "e-samsum", "e-passage-count", "e-passage-retrieval-en", "e-lcc",
    "e-repobench-p",
]  # fmt: skip
NAMES = [f"longbench-{name}" for name in LONGBENCH]
CORPORA = (PG19_TEST, PROOF_PILE)
_LONGBENCH_FILES = partial(read_tasks, NAMES)


# Table 1: perplexity


def stride(session: PaperSession) -> int:
    """Tokens between the windows of a text: the paper's 256, or half a window on the quick scale."""
    return session.choose(session.tokens(256, WINDOW), max(session.tokens(WINDOW // 2, WINDOW), 1))


def _perplexity(session: PaperSession) -> Sequence[Cell]:
    return perplexity_cells(
        session,
        methods(session),
        CORPORA,
        lengths_of(session),
        stride=stride(session),
        mode="new",
        windows=session.at_most(8),
    )


def _perplexity_protocol(session: PaperSession) -> str:
    count = session.at_most(8)
    return (
        f"A window slides over the text by {stride(session):,} tokens and each scores the tokens new to it "
        "(the paper: 256 of a window of 4,096). Windows a cell: "
        f"{'all' if count is None else f'{count}, from all of the text'}; "
        f"they score the same tokens in every row and at every length; {said_borders(session, CORPORA)} (the paper: "
        "100 test documents of each). "
        f"The paper's row is k = 8, an attention window of {half(session):,} tokens (2k); LongHeads without more has "
        f"{session.tokens(WINDOW, WINDOW):,} (4k). Inside the model's window all rows are stock's, as the paper's "
        f"are at 4k. {ntk_said(session)} With NTK init a row is NTK's here, as nothing is generated."
    )


# Passkey and needle


def _passkey(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([WINDOW * n for n in session.choose(range(1, 9), (1, 2, 4, 6, 8))], WINDOW)
    return grid(session, few(session), "passkey", lengths, session.prompts(50, 6))


def _passkey_protocol(session: PaperSession) -> str:
    return (
        f"Five digits in noise, at a random place; prompts a length: {session.prompts(50, 6)} "
        "(the paper: 50, at 4k to 32k by 4k, which are 1 to 8 windows). The paper does not say which of its attention "
        "windows this is of: the rows have 4k (k = 16), as its Table 2; at 2k (k = 8) Figure 6 begins with the same "
        f"prompts. {SAID_THEM} {ntk_said(session)}"
    )


def _far(session: PaperSession) -> Sequence[Cell]:
    made = {"stock": parse_spec("stock"), **halved(session)}
    lengths = session.lengths([WINDOW * n for n in session.choose((1, 2, 4, 8, 16, 32), (1, 8, 32))], WINDOW)
    return grid(session, made, "passkey", lengths, session.prompts(50, 2))


def _far_protocol(session: PaperSession) -> str:
    return (
        f"Passkeys as in Figure 4, 4k to 128k, {session.prompts(50, 2)} a length, at an attention window of "
        f"{half(session):,} tokens (the paper: 2k), which is k = 8 and chooses inside the model's window too. "
        f"{SAID_THEM}"
    )


def depth_lengths(session: PaperSession) -> list[int]:
    """1k to 50k by 3k at a window of 4,096."""
    return session.lengths(session.choose(range(K, 50 * K + 1, 3 * K), (4 * K, 10 * K, 25 * K, 49 * K)), WINDOW)


def _depths(session: PaperSession) -> Sequence[Cell]:
    depths = spread(session.choose(10, 4))
    cells = grid(session, few(session), "passkey", depth_lengths(session), session.prompts(10, 1), depths)
    return averaged(cells, "all lengths and depths")


def _depths_protocol(session: PaperSession) -> str:
    return (
        f"Five digits in noise at {session.choose(10, 4)} depths, {session.prompts(10, 1)} prompts a depth "
        f"(the paper: 10, at 1k to 50k by 3k). {SAID_THEM} {ntk_said(session)}"
    )


# Table 2: LongBench


def _longbench(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([4 * WINDOW, 8 * WINDOW], WINDOW)
    cells = data_cells(session, few(session), NAMES, lengths, session.at_most(5))
    return [*cells, missing_row("LongHeads w/ PI init", cells[0].column, "a model fine-tuned with PI", PI_REASON)]


def _longbench_protocol(session: PaperSession) -> str:
    return (
        "LongBench, and LongBench-E if it has the task, cut in the middle to 4 and 8 windows (16k and 32k); for a "
        f"chat model this is Table 8, which has the same tasks and rows. {ntk_said(session)}"
    )


# Table 4: ablations


def _ablations(session: PaperSession) -> Sequence[Cell]:
    stock = {"stock": parse_spec("stock")}
    if has_data(session, NAMES):
        lengths = session.lengths([4 * WINDOW], WINDOW)
        made = data_cells(session, {**stock, **ablations(session)}, NAMES, lengths, session.at_most(2))
        return _transposed(made)
    window = session.subject.window
    lengths = session.lengths([WINDOW * n for n in session.choose((4, 8), (4,))], WINDOW)
    made_of = {**stock, INSIDE: stock["stock"], **ablations(session)}
    cells = grid(session, made_of, "passkey", lengths, session.prompts(50, 5), column="passkey, {length}")
    # Windows of all lengths end at the same tokens, so that in the window the same ones are scored.
    every, shown = list(dict.fromkeys([*lengths, window])), [session.in_windows(length) for length in lengths]
    measured = perplexity_cells(
        session, made_of, (), every, stride=stride(session), mode="new", windows=session.at_most(8)
    )
    for cell in measured:
        _, _, label = cell.row.partition(": ")
        columns = [cell.column] if cell.column in shown else []
        if label == INSIDE:
            columns = shown if cell.column == session.in_windows(window) else []
        cells += [replace(cell, row=label, column=f"perplexity, {column}") for column in columns]
    return cells


def _transposed(made: Sequence[Cell]) -> list[Cell]:
    """A row for each setting, as these are compared, with its mean, which the paper gives alone; and files to come.

    A setting without a mean says why it has none.
    """
    absent = [cell for cell in made if cell.brief.startswith("needs")]
    means = {cell.column: cell for cell in made if cell.row.startswith("mean")}
    settings = {cell.column: means.get(cell.column, cell) for cell in made if cell not in absent}
    first = next((cell.row for cell in means.values()), "mean")
    return [
        *(replace(cell, row=name, column=cell.row if name in means else first) for name, cell in settings.items()),
        *(replace(cell, column=first) for cell in absent),
    ]


def _ablations_protocol(session: PaperSession) -> str:
    data = "The mean of LongBench's 16 tasks, cut to 4 windows (16k)."
    made = (
        f"Passkeys in noise, {session.prompts(50, 5)} a length, and the perplexity of {STANDARD}, as "
        f"LongBench's files are not at hand. {SAID_INSIDE}"
    )
    return (
        f"{data if has_data(session, NAMES) else made} Numbers of tokens are those of the paper at {WINDOW:,}, "
        f"scaled: l = 256 is {chunk_length(session)}. Chunks are 16 if a row does not say k; of l = 512 "
        "there are 8, as more do not fit the window, and 16 of l = 128 are half a window (the paper says neither). "
        "“Last” chunks are the local ones; the query's own is kept in every row, as no model is "
        "trained on queries that do not see themselves (the paper's “Random P” may leave it out). “Without the first "
        "chunk” it is one of those to choose from, and kept if it is chosen."
    )


LONGHEADS = Paper(
    name="longheads",
    title="LongHeads: Multi-Head Attention is Secretly a Long Context Processor",
    cite="Lu et al., 2024, arXiv 2402.10685",
    models="Llama-2-7B and Llama-2-7B-Chat (window 4,096)",
    hardware="one A100",
    windows=(WINDOW,),
    numbering=" in the ACL submission (Table 8 is Table 5 of arXiv v2, which lacks the submission's Table 5)",
    rows=SAID_LOCAL,
    tables=(
        PaperTable("Table 1", "Perplexity", _perplexity_protocol, _perplexity, reads=partial(read_texts, CORPORA)),
        PaperTable("Figure 4", "Passkeys found", _passkey_protocol, _passkey, lines=True),
        PaperTable("Table 2", "LongBench", _longbench_protocol, _longbench, also=("Table 8",), reads=_LONGBENCH_FILES),
        *longheads_heads.CHOICES,
        PaperTable("Table 4", "Ablations", _ablations_protocol, _ablations, reads=_LONGBENCH_FILES),
        *longheads_takes.TABLES,
        PaperTable("Figure 6", "Passkeys to 128k", _far_protocol, _far),
        PaperTable("Figure 7", "Passkeys by depth", _depths_protocol, _depths, depths=True),
        longheads_heads.SPLIT,
    ),
)
