"""The figures of Dual Chunk Attention on what it takes (Figure 3) and on its positions (Figures 2 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from longspan.methods import DCA, Method
from longspan.methods.parse import parse_method
from longspan_eval.analysis.pictures import draw_positions, relative_positions
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.reduce import against, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.dca_methods import WINDOW, K, method
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperTable

EXAMPLES = {  # of 12 tokens each
    "Figure 2": "dca:chunk_size=6,local_window=4,window=10",
    "Figure 8": "dca:chunk_size=4,local_window=3,window=8",
}
EXAMPLE_TOKENS = 12


def _efficiency(session: PaperSession) -> Sequence[Cell]:
    implementations = {"stock, eager": "eager", "stock, flash": "sdpa", "DCA": None}
    shown = {"prefill": median_of("prefill", "seconds"), "memory": median_of("memory", "bytes")}
    stock = parse_spec("stock")
    cells = []
    for length in session.lengths([n * K for n in session.choose((4, 8, 12, 16, 32, 64), (4, 8, 16, 32))], WINDOW):
        reason = session.too_long(length)
        rounds = range(0 if reason else session.prompts(20, 3))
        base = tuple(Timed(stock, length, r, implementation="sdpa") for r in rounds)
        for label, implementation in implementations.items():
            row, where = method(session) if implementation is None else stock, f"{label}, {session.in_windows(length)}"
            timed = tuple(Timed(row, length, r, implementation=implementation) for r in rounds)
            cells += [Cell(where, column, show, timed, missing=reason) for column, show in shown.items()]
            if implementation != "sdpa":
                cells.append(Cell(where, "prefill, over flash", against("prefill"), timed, base, missing=reason))
    return cells


def _efficiency_protocol(session: PaperSession) -> str:
    return (
        "The prefill of a passkey prompt, which needs no file (the paper: of NarrativeQA; times depend on the number "
        f"of tokens, not on the words), {session.prompts(20, 3)} rounds (the paper: 20), rows taking turns; medians, "
        "which other work on the machine moves less than the paper's means, and ratios within a round. Flash is "
        "torch's own (sdpa). Memory is the most in use above what was before the prompt, weights not counted. The "
        "longest input that fits is not looked for: a length that does not fit says so."
    )


def _examples() -> Iterator[tuple[str, str, Method]]:
    """Each of the paper's examples: its figure, its parameters as text, the method."""
    for number, spec in EXAMPLES.items():
        example = parse_method(spec)
        assert isinstance(example, DCA) and example.window is not None
        yield number, spec.partition(":")[2], example.resolve(example.window)


def _matrix(session: PaperSession) -> Sequence[Cell]:
    window = session.subject.window
    own = method(session).method
    assert own is not None
    shown = [(f"{number}, {written}", example, EXAMPLE_TOKENS) for number, written, example in _examples()]
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
    names = []
    for number, written, example in _examples():
        path = out / f"{number.lower().replace(' ', '-')}.png"
        draw_positions(example, EXAMPLE_TOKENS, path, title=f"DCA, {number}: {written}")
        names.append(path.name)
    return names


POSITIONS = PaperTable(
    "Figure 2", "Relative positions", _matrix_protocol, _matrix, pictures=_matrix_pictures, also=("Figure 8",)
)
PREFILL = PaperTable("Figure 3", "Prefill time and memory", _efficiency_protocol, _efficiency, interleaved=True)
