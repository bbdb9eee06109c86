"""The tables of Dual Chunk Attention (An et al., 2024, arXiv 2402.17463), for a window of 4,096 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longspan.methods.parse import parse_method
from longspan_eval.analysis.pictures import draw_positions, relative_positions
from longspan_eval.datafile import read_records
from longspan_eval.reproduce.ablations import parse_row
from longspan_eval.reproduce.figures import ANSWERS, FOUND, Figure, against, median_of
from longspan_eval.reproduce.lab import Lab
from longspan_eval.reproduce.measures import Asked, Timed
from longspan_eval.reproduce.parts import data_cells, grid, perplexity_cells, too_long
from longspan_eval.reproduce.table import Cell, Paper, Table, missing_file
from longspan_eval.reproduce.texts import PG19
from longspan_eval.reproduce.unseen import UNSEEN
from longspan_eval.rows import Row
from longspan_eval.study import spread
from longspan_eval.windows import STRIDE

WINDOW = 4096
K = 1024
EXAMPLE = "dca:chunk_size=6,local_window=4,window=10"  # its Figure 2
EXAMPLE_TOKENS = 12
PARTS = {"intra": "parts=intra", "intra and inter": "parts=intra+inter", "DCA": "parts=all"}


def method(lab: Lab, more: str = "") -> Row:
    """DCA with the paper's sizes: chunks of 3/4 of the window, and the rest of it local."""
    window = lab.tokens(WINDOW, WINDOW)
    size = lab.tokens(3072, WINDOW)
    text = f"dca:chunk_size={size},local_window={window - size},window={window}"
    return parse_row(f"{text},{more}" if more else text)


def rows(lab: Lab) -> dict[str, Row]:
    """The rows that take no training."""
    return {
        "stock": parse_row("stock"),
        "PI": parse_row("pi"),
        "dynamic NTK": parse_row("dynamic-ntk"),
        "DCA": method(lab),
    }


def _both(lab: Lab) -> dict[str, Row]:
    return {"stock": parse_row("stock"), "DCA": method(lab)}


def _samples(lab: Lab) -> int | None:
    return lab.samples if lab.scale == "paper" else lab.prompts(5, 5)


# Perplexity


def _stride(lab: Lab) -> int:
    return lab.choose(lab.tokens(STRIDE, WINDOW), lab.tokens(WINDOW // 2, WINDOW))


def _windows(lab: Lab) -> int | None:
    return lab.samples if lab.scale == "paper" else lab.prompts(8, 8)


def _perplexity(lab: Lab) -> Sequence[Cell]:
    lengths = lab.lengths([n * K for n in lab.choose((4, 8, 16, 32, 64, 96), (4, 8, 16, 32))], WINDOW)
    return perplexity_cells(lab, rows(lab), (PG19,), lengths, stride=_stride(lab), mode="whole", windows=_windows(lab))


def _perplexity_protocol(lab: Lab) -> str:
    count = _windows(lab)
    return (
        f"Windows {_stride(lab):,} tokens apart, each scored whole, its first tokens too, as the paper's code does "
        "(256 apart at 4,096): so longer windows are better by that alone. "
        f"Windows a cell: {'all' if count is None else f'{count}, from all of the text'}, the same for every row."
    )


# Passkeys


def _passkey(lab: Lab) -> Sequence[Cell]:
    made = {"stock": parse_row("stock"), **{name: method(lab, more) for name, more in PARTS.items()}}
    lengths = lab.lengths([n * K for n in (4, 8, 12, 16, 20)], WINDOW)
    return grid(lab, made, "passkey", lengths, lab.prompts(20, 1), spread(lab.choose(10, 5)))


def _passkey_protocol(lab: Lab) -> str:
    return (
        f"Five digits in noise at {lab.choose(10, 5)} depths, prompts a depth: {lab.prompts(20, 1)} (the paper: 20, at "
        "4k to 20k). The two ablations leave out attention across chunks, and to the chunk before at its true distance."
    )


def _far(lab: Lab) -> Sequence[Cell]:
    lengths = lab.lengths([n * K for n in lab.choose((16, 32, 64, 96, 128, 192), (64, 192))], WINDOW)
    return grid(lab, _both(lab), "passkey", lengths, lab.prompts(20, 2))


def _far_protocol(lab: Lab) -> str:
    return (
        f"Five digits in noise at a random place, to 192k at a window of 4,096; prompts a length: {lab.prompts(20, 2)}."
    )


# From data


def _few_shot(lab: Lab) -> Sequence[Cell]:
    tasks = [f"fewshot-{name}" for name in ("narrativeqa", "qasper", "quality", "qmsum")]
    return data_cells(lab, _both(lab), tasks, lab.lengths([16 * K], WINDOW), _samples(lab))


def _few_shot_protocol(lab: Lab) -> str:
    return (
        "0, 2, 2 and 1 examples; F1, F1, exact match and the geometric mean of ROUGE, here the mean of each answer's, "
        "which is never more than SCROLLS' own, made of the means; cut from the left to 4 windows."
    )


def _examples(lab: Lab) -> Sequence[Cell]:
    tasks = [f"fewshot-{name}{choice}" for name in ("qasper", "quality", "qmsum") for choice in ("", "-best", "-worst")]
    return data_cells(lab, _both(lab), tasks, lab.lengths([16 * K], WINDOW), _samples(lab))


def _examples_protocol(lab: Lab) -> str:
    return "Examples at random, and those whose questions match best and worst by BM25."


def _zero_shot(lab: Lab) -> Sequence[Cell]:
    tasks = [f"leval-{name}" for name in ("toefl", "quality", "coursera", "sfiction")]
    return data_cells(lab, _both(lab), tasks, lab.lengths([16 * K], WINDOW), _samples(lab))


def _zero_shot_protocol(lab: Lab) -> str:
    return "L-Eval's four closed-ended tasks on documents, for chat models; at 4 windows."


def _unseen(lab: Lab) -> Sequence[Cell]:
    assert UNSEEN.data is not None
    absent = missing_file(lab, "your paper", "F1", UNSEEN.data.name, UNSEEN.data.source)
    if absent is not None:
        return [absent]
    records, length = read_records(UNSEEN, lab.data_dir), lab.tokens(16 * K, WINDOW)
    reason = too_long(lab, length)
    cells = []
    for label, row in _both(lab).items():
        asked = () if reason else tuple(Asked(row, UNSEEN, length, n, None, one) for n, one in enumerate(records))
        cells.append(Cell(label, "F1", FOUND, asked, missing=reason))
        for n, one in enumerate(records):
            cells.append(Cell(label, f"{n + 1}. {one['question']}", ANSWERS, asked[n : n + 1], missing=reason))
    return cells


def _unseen_protocol(lab: Lab) -> str:
    return "A text of your own, and your questions on it; F1 against your answers, and what was answered."


# Figure 3: prefill, and Figure 2: relative positions


def _efficiency(lab: Lab) -> Sequence[Cell]:
    implementations = {"stock, eager": "eager", "stock, flash": "sdpa", "DCA": None}
    shown = {"prefill": median_of("prefill", "seconds"), "memory": median_of("memory", "bytes")}
    stock = parse_row("stock")
    cells = []
    for n in lab.choose((1, 2, 4, 8, 16), (1, 2, 4, 8)):
        length = lab.tokens(n * WINDOW, WINDOW)
        reason = too_long(lab, length)
        rounds = range(0 if reason else lab.prompts(5, 3))
        base = tuple(Timed(stock, length, r, answers=False, implementation="sdpa") for r in rounds)
        for label, implementation in implementations.items():
            row, where = method(lab) if implementation is None else stock, f"{label}, {length:,} tokens"
            timed = tuple(Timed(row, length, r, answers=False, implementation=implementation) for r in rounds)
            cells += [Cell(where, column, show, timed, missing=reason) for column, show in shown.items()]
            if implementation != "sdpa":
                show = against("prefill", Timed(stock, length, 0, implementation="sdpa").told)
                cells.append(Cell(where, "prefill, over flash", show, timed + base, missing=reason))
    return cells


def _efficiency_protocol(lab: Lab) -> str:
    return (
        f"The prefill of a prompt, {lab.prompts(5, 3)} rounds, rows taking turns; medians, and ratios "
        "within a round. Flash is torch's own (sdpa). Memory is the most in use above what was before "
        "the prompt, weights not counted."
    )


def _matrix(lab: Lab) -> Sequence[Cell]:
    window = lab.subject.window
    own = method(lab).method
    assert own is not None
    shown = [("the paper's example, s = 6, w = 4, c = 10", parse_method(EXAMPLE).resolve(10), EXAMPLE_TOKENS)]
    if too_long(lab, 3 * window) is None and 3 * window <= 4096:  # as large as a matrix is drawn
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


def _matrix_protocol(lab: Lab) -> str:
    return "At which distance each query sees each key: never more than c - 1, however long the text."


def _matrix_pictures(lab: Lab, out: Path) -> list[str]:
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
        Table("passkey", "Passkeys found", "its passkey figure", _passkey_protocol, _passkey, chart="lines"),
        Table("passkey-far", "Passkeys at random places", "its passkeys to 192k", _far_protocol, _far),
        Table("few-shot", "Few-shot tasks", "its few-shot table", _few_shot_protocol, _few_shot),
        Table("examples", "Choice of examples", "Table 5", _examples_protocol, _examples),
        Table("zero-shot", "Zero-shot tasks", "its zero-shot table", _zero_shot_protocol, _zero_shot),
        Table("unseen", "A paper that the model has not seen", "appendix A.5", _unseen_protocol, _unseen),
        Table("efficiency", "Prefill time and memory", "Figure 3", _efficiency_protocol, _efficiency, True),
        Table("matrix", "Relative positions", "Figure 2", _matrix_protocol, _matrix, pictures=_matrix_pictures),
    ),
)
