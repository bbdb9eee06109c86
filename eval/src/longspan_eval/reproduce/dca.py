"""The tables of Dual Chunk Attention (An et al., 2024, arXiv 2402.17463), for a window of 4,096 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longspan.methods.parse import parse_method
from longspan_eval.analysis.pictures import draw_positions, relative_positions
from longspan_eval.cell import Cell
from longspan_eval.datafile import read_records
from longspan_eval.figure import Figure
from longspan_eval.measure import Prompt
from longspan_eval.reduce import against, answers, found, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import data_cells, grid, perplexity_cells
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, Table, missing_file
from longspan_eval.reproduce.texts import PG19
from longspan_eval.reproduce.unseen import UNSEEN
from longspan_eval.spec import MethodSpec
from longspan_eval.studies.eval import spread
from longspan_eval.windows import STRIDE

WINDOW = 4096
K = 1024
EXAMPLE = "dca:chunk_size=6,local_window=4,window=10"  # its Figure 2
EXAMPLE_TOKENS = 12
PARTS = {"intra": "parts=intra", "intra and inter": "parts=intra+inter", "DCA": "parts=all"}


def method(session: PaperSession, more: str = "") -> MethodSpec:
    """DCA with the paper's sizes: chunks of 3/4 of the window, and the rest of it local."""
    window = session.tokens(WINDOW, WINDOW)
    size = session.tokens(3072, WINDOW)
    text = f"dca:chunk_size={size},local_window={window - size},window={window}"
    return parse_spec(f"{text},{more}" if more else text)


def methods(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows that take no training."""
    return {
        "stock": parse_spec("stock"),
        "PI": parse_spec("pi"),
        "dynamic NTK": parse_spec("dynamic-ntk"),
        "DCA": method(session),
    }


def _both(session: PaperSession) -> dict[str, MethodSpec]:
    return {"stock": parse_spec("stock"), "DCA": method(session)}


# Perplexity


def _stride(session: PaperSession) -> int:
    return session.choose(session.tokens(STRIDE, WINDOW), session.tokens(WINDOW // 2, WINDOW))


def _perplexity(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([n * K for n in session.choose((4, 8, 16, 32, 64, 96), (4, 8, 16, 32))], WINDOW)
    return perplexity_cells(
        session, methods(session), (PG19,), lengths, stride=_stride(session), mode="whole", windows=session.at_most(8)
    )


def _perplexity_protocol(session: PaperSession) -> str:
    count = session.at_most(8)
    return (
        f"Windows {_stride(session):,} tokens apart, each scored whole, its first tokens too, as the paper's code does "
        "(256 apart at 4,096): so longer windows are better by that alone. "
        f"Windows a cell: {'all' if count is None else f'{count}, from all of the text'}, the same for every row."
    )


# Passkeys


def _passkey(session: PaperSession) -> Sequence[Cell]:
    made = {"stock": parse_spec("stock"), **{name: method(session, more) for name, more in PARTS.items()}}
    lengths = session.lengths([n * K for n in (4, 8, 12, 16, 20)], WINDOW)
    return grid(session, made, "passkey", lengths, session.prompts(20, 1), spread(session.choose(10, 5)))


def _passkey_protocol(session: PaperSession) -> str:
    return (
        f"Five digits in noise at {session.choose(10, 5)} depths, prompts a depth: {session.prompts(20, 1)} "
        "(the paper: 20, at 4k to 20k). The two ablations leave out attention across chunks, and to the chunk before "
        "at its true distance."
    )


def _far(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([n * K for n in session.choose((16, 32, 64, 96, 128, 192), (64, 192))], WINDOW)
    return grid(session, _both(session), "passkey", lengths, session.prompts(20, 2))


def _far_protocol(session: PaperSession) -> str:
    n = session.prompts(20, 2)
    return f"Five digits in noise at a random place, to 192k at a window of 4,096; prompts a length: {n}."


# From data


def _few_shot(session: PaperSession) -> Sequence[Cell]:
    tasks = [f"fewshot-{name}" for name in ("narrativeqa", "qasper", "quality", "qmsum")]
    return data_cells(session, _both(session), tasks, session.lengths([16 * K], WINDOW), session.at_most(5))


def _few_shot_protocol(session: PaperSession) -> str:
    return (
        "0, 2, 2 and 1 examples; F1, F1, exact match and the geometric mean of ROUGE, here the mean of each answer's, "
        "which is never more than SCROLLS' own, made of the means; cut from the left to 4 windows."
    )


def _examples(session: PaperSession) -> Sequence[Cell]:
    tasks = [f"fewshot-{name}{choice}" for name in ("qasper", "quality", "qmsum") for choice in ("", "-best", "-worst")]
    return data_cells(session, _both(session), tasks, session.lengths([16 * K], WINDOW), session.at_most(5))


def _examples_protocol(session: PaperSession) -> str:
    return "Examples at random, and those whose questions match best and worst by BM25."


def _zero_shot(session: PaperSession) -> Sequence[Cell]:
    tasks = [f"leval-{name}" for name in ("toefl", "quality", "coursera", "sfiction")]
    return data_cells(session, _both(session), tasks, session.lengths([16 * K], WINDOW), session.at_most(5))


def _zero_shot_protocol(session: PaperSession) -> str:
    return "L-Eval's four closed-ended tasks on documents, for chat models; at 4 windows."


def _unseen(session: PaperSession) -> Sequence[Cell]:
    assert UNSEEN.data is not None
    absent = missing_file(session, "your paper", "F1", UNSEEN.data.name, UNSEEN.data.source)
    if absent is not None:
        return [absent]
    records, length = read_records(UNSEEN, session.data_dir), session.tokens(16 * K, WINDOW)
    reason = session.too_long(length)
    cells = []
    for label, row in _both(session).items():
        asked = (
            () if reason else tuple(Prompt(row, length, n, task=UNSEEN, record=one) for n, one in enumerate(records))
        )
        cells.append(Cell(label, "F1", found, asked, missing=reason))
        for n, one in enumerate(records):
            cells.append(Cell(label, f"{n + 1}. {one['question']}", answers, asked[n : n + 1], missing=reason))
    return cells


def _unseen_protocol(session: PaperSession) -> str:
    return "A text of your own, and your questions on it; F1 against your answers, and what was answered."


# Figure 3: prefill, and Figure 2: relative positions


def _efficiency(session: PaperSession) -> Sequence[Cell]:
    implementations = {"stock, eager": "eager", "stock, flash": "sdpa", "DCA": None}
    shown = {"prefill": median_of("prefill", "seconds"), "memory": median_of("memory", "bytes")}
    stock = parse_spec("stock")
    cells = []
    for n in session.choose((1, 2, 4, 8, 16), (1, 2, 4, 8)):
        length = session.tokens(n * WINDOW, WINDOW)
        reason = session.too_long(length)
        rounds = range(0 if reason else session.prompts(5, 3))
        base = tuple(Timed(stock, length, r, answers=False, implementation="sdpa") for r in rounds)
        for label, implementation in implementations.items():
            row, where = method(session) if implementation is None else stock, f"{label}, {length:,} tokens"
            timed = tuple(Timed(row, length, r, answers=False, implementation=implementation) for r in rounds)
            cells += [Cell(where, column, show, timed, missing=reason) for column, show in shown.items()]
            if implementation != "sdpa":
                cells.append(Cell(where, "prefill, over flash", against("prefill"), timed, base, missing=reason))
    return cells


def _efficiency_protocol(session: PaperSession) -> str:
    return (
        f"The prefill of a prompt, {session.prompts(5, 3)} rounds, rows taking turns; medians, and ratios "
        "within a round. Flash is torch's own (sdpa). Memory is the most in use above what was before "
        "the prompt, weights not counted."
    )


def _matrix(session: PaperSession) -> Sequence[Cell]:
    window = session.subject.window
    own = method(session).method
    assert own is not None
    shown = [("the paper's example, s = 6, w = 4, c = 10", parse_method(EXAMPLE).resolve(10), EXAMPLE_TOKENS)]
    if session.too_long(3 * window) is None and 3 * window <= 4096:  # as large as a matrix is drawn
        shown.append((f"this model, c = {window:,}", own.resolve(window), 3 * window))
    cells = []
    for label, resolved, length in shown:
        rel, keep = relative_positions(resolved, length)
        largest = Figure(float(rel[keep].max()), "number")
        cells += [
            Cell(f"{label}, {length:,} tokens", "largest relative position", figure=largest),
            Cell(f"{label}, {length:,} tokens", "without DCA", figure=Figure(float(length - 1), "number")),
        ]
    return cells


def _matrix_protocol(session: PaperSession) -> str:
    return "At which distance each query sees each key: never more than c - 1, however long the text."


def _matrix_pictures(session: PaperSession, out: Path) -> list[str]:
    path = out / "matrix.png"
    draw_positions(parse_method(EXAMPLE).resolve(10), EXAMPLE_TOKENS, path, title="DCA, s = 6, w = 4, c = 10")
    return [path.name]


DCA_PAPER = Paper(
    name="dca",
    title="Training-Free Long-Context Scaling of Large Language Models",
    cite="An et al., 2024, arXiv 2402.17463",
    models="Llama-2 of 7B, 13B and 70B (window 4,096); Llama-3 (window 8,192) where a row says so",
    hardware="A100s of 80 GB",
    window=WINDOW,
    tables=(
        Table("perplexity", "Perplexity", "its perplexity table", _perplexity_protocol, _perplexity),
        Table("passkey", "Passkeys found", "its passkey figure", _passkey_protocol, _passkey, lines=True),
        Table("passkey-far", "Passkeys at random places", "its passkeys to 192k", _far_protocol, _far),
        Table("few-shot", "Few-shot tasks", "its few-shot table", _few_shot_protocol, _few_shot),
        Table("examples", "Choice of examples", "Table 5", _examples_protocol, _examples),
        Table("zero-shot", "Zero-shot tasks", "its zero-shot table", _zero_shot_protocol, _zero_shot),
        Table("unseen", "A paper that the model has not seen", "appendix A.5", _unseen_protocol, _unseen),
        Table("efficiency", "Prefill time and memory", "Figure 3", _efficiency_protocol, _efficiency, True),
        Table("matrix", "Relative positions", "Figure 2", _matrix_protocol, _matrix, pictures=_matrix_pictures),
    ),
)
