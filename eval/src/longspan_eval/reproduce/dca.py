"""The tables of Dual Chunk Attention (An et al., 2024, arXiv 2402.17463), whose numbers are for a window of 4,096."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from longspan_eval.cell import Cell
from longspan_eval.measure import TaskPrompt
from longspan_eval.reproduce import dca_data, dca_shapes
from longspan_eval.reproduce.cells import (
    SAID_INSIDE,
    Methods,
    averaged,
    grid,
    inside,
    means,
    perplexity_cells,
    read_texts,
    said_borders,
)
from longspan_eval.reproduce.dca_methods import MISTRAL, WINDOW, K, methods, parts, some
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, PaperTable
from longspan_eval.reproduce.texts import PG19_VALIDATION
from longspan_eval.studies.eval import spread
from longspan_eval.windows import STRIDE

_BOOKS = partial(read_texts, (PG19_VALIDATION,))
LARGE = 30e9  # parameters: of the paper's models 70B alone is above


def stride(session: PaperSession, thousands: int = 0) -> int:
    """256 tokens, 2,048 for the largest models, and half of the input beyond 96k; "quick": half a window."""
    if thousands > 96:
        return session.tokens(thousands * K / 2, WINDOW)
    own = 2048 if session.subject.parameters > LARGE else STRIDE
    return session.tokens(session.choose(own, WINDOW // 2), WINDOW)


# Tables 1 and 2, Figure 4 left: perplexity


def _slid(session: PaperSession, made: Methods, thousands: Sequence[int], windows: int, **named: str) -> list[Cell]:
    return perplexity_cells(
        session,
        made,
        (PG19_VALIDATION,),
        session.lengths([n * K for n in thousands], WINDOW),
        stride=stride(session, max(thousands)),
        mode="whole",
        windows=session.at_most(windows),
        **named,
    )


def _slid_protocol(session: PaperSession, windows: int, said: str) -> str:
    count = session.at_most(windows)
    return (
        f"Windows {stride(session):,} tokens apart, each scored whole, its first tokens too, as the paper's code does: "
        f"so longer windows are better by that alone. Windows a cell: "
        f"{'all' if count is None else f'{count}, from all texts'}, the same for every row; "
        f"{said_borders(session, (PG19_VALIDATION,))}. {said}"
    )


def _perplexity(session: PaperSession) -> Sequence[Cell]:
    return _slid(session, methods(session), session.choose((4, 8, 16, 32, 64), (4, 8, 16, 32)), 8)


def _perplexity_protocol(session: PaperSession) -> str:
    said = (
        "The paper: 256 apart, 2,048 for 70B; PI, NTK and YaRN follow the length. It does "
        "not say what its PI-Yarn is, so there is no row of it; dynamic NTK is a row that its table has not."
    )
    return _slid_protocol(session, 8, said)


def _long_perplexity(session: PaperSession) -> Sequence[Cell]:
    # To 64k of the documents of Table 1, beyond that of those that are long enough: fewer with each length.
    groups = session.choose(((4, 32, 64), (96,), (128,), (160,), (192,)), ((4, 32, 96), (192,)))
    made, named = some(session, "stock", "DCA"), {"row": "{corpus}: {label}", "column": "{length}{documents}"}
    first, *others = (_slid(session, made, thousands, 3, **named) for thousands in groups)
    return [*first, *(cell for cells in others for cell in cells if not cell.brief.startswith("needs"))]


def _long_protocol(session: PaperSession) -> str:
    said = (
        "Beyond 96k they are half of their length apart, as the paper says of its longest. To 64k the documents are "
        "those of Table 1; longer windows are of those that are long enough. The paper's chunks of 24k for CodeLlama "
        "and Together are those of a window of 32k: CodeLlama's config has 16k, so give it --window 32768."
    )
    return _slid_protocol(session, 3, said)


def _part_lengths(session: PaperSession) -> Sequence[int]:
    return session.choose((8, 12, 16, 20, 24, 28, 32), (8, 12, 32))


def _parts(session: PaperSession) -> Sequence[Cell]:
    cells = _slid(session, parts(session), _part_lengths(session), 6)
    lengths = session.lengths([n * K for n in _part_lengths(session)], WINDOW)
    made = session.choose(parts(session), inside(parts(session)))
    return [*cells, *grid(session, made, "passkey", lengths, session.prompts(20, 4), column="passkeys, {length}")]


def _parts_protocol(session: PaperSession) -> str:
    count = session.prompts(20, 4)
    said = f"Right: five digits in noise at a random place, {count} prompts a length (the paper: 8k to 32k)."
    said += session.choose("", f" {SAID_INSIDE}")
    return "Left: " + _slid_protocol(session, 6, said)


# Figures 5 to 7: things to find


def _passkey(session: PaperSession) -> Sequence[Cell]:
    made = some(session, "stock", "PI", "NTK", "dynamic NTK", "DCA")
    lengths = session.lengths([n * K for n in session.choose(range(4, 25, 2), (4, 8, 18, 24))], WINDOW)
    cells = grid(session, made, "passkey", lengths, session.prompts(20, 1), spread(session.choose(10, 5)))
    most = session.tokens(18 * K, WINDOW)
    near = {session.in_windows(length) for length in lengths if length <= most}
    return [
        *cells,
        *means([cell for cell in cells if cell.column in near], f"to {session.in_windows(most)}, all depths"),
        *means(cells, "middle depths", lambda one: isinstance(one, TaskPrompt) and 0.3 < (one.depth or 0.0) < 0.7),
    ]


def _passkey_protocol(session: PaperSession) -> str:
    return (
        f"Five digits in noise at {session.choose(10, 5)} depths, prompts a depth: {session.prompts(20, 1)} "
        "(the paper: 20, at 4k to 20k in its text and 24k in its caption). Middle depths are those between 30% and "
        "70%. Dynamic NTK is not in the paper's figure."
    )


def needle_lengths(session: PaperSession) -> list[int]:
    """To 192k at Mistral's window; at another of the paper's models scaled too, unless told otherwise."""
    thousands = session.choose((8, 32, 64, 96, 128, 160, 192), (64, 192))
    window = MISTRAL if session.scale_to == "paper" else session.subject.window
    return [n * K * window // MISTRAL for n in thousands]


def _needle(session: PaperSession) -> Sequence[Cell]:
    lengths = needle_lengths(session)
    made = session.choose(some(session, "stock", "DCA"), inside(some(session, "stock", "DCA")))
    task = session.choose("needle", "passkey-prose")
    cells = grid(session, made, task, lengths, session.prompts(1, 1), spread(session.choose(10, 5)))
    return averaged(cells, "all lengths and depths")


def _needle_protocol(session: PaperSession) -> str:
    said = session.choose("One sentence", f"{SAID_INSIDE} Five digits instead of one sentence")
    return (
        f"{said} in prose at {session.choose(10, 5)} depths, to {needle_lengths(session)[-1]:,} tokens (the paper: to "
        "192k, with a model whose window is 32k)."
    )


def _far(session: PaperSession) -> Sequence[Cell]:
    thousands = session.choose((2, 4, 8, 16, 32, 64, 96, 128, 160, 192), (4, 32, 192))
    lengths = session.lengths([n * K for n in thousands], WINDOW)
    return grid(session, some(session, "stock", "DCA"), "passkey", lengths, session.prompts(20, 2))


def _far_protocol(session: PaperSession) -> str:
    return f"Five digits in noise at a random place; prompts a length: {session.prompts(20, 2)} (the paper: 20)."


DCA_PAPER = Paper(
    name="dca",
    title="Training-Free Long-Context Scaling of Large Language Models",
    cite="An et al., 2024, arXiv 2402.17463",
    models="Llama-2 of 7B, 13B and 70B (window 4,096), Llama-3 (8,192), CodeLlama-7B (16k), Together-7B and "
    "Mistral-7B-Instruct-v0.2 (32k), if a row says so",
    hardware="A100s of 80 GB",
    windows=(WINDOW, 8192, 16_384, MISTRAL),
    tables=(
        dca_shapes.POSITIONS,
        PaperTable("Table 1", "Perplexity", _perplexity_protocol, _perplexity, reads=_BOOKS),
        PaperTable("Table 2", "Perplexity to 192k", _long_protocol, _long_perplexity, reads=_BOOKS),
        *dca_data.TEXT,
        dca_shapes.PREFILL,
        PaperTable("Figure 4", "What each part does", _parts_protocol, _parts, reads=_BOOKS),
        PaperTable("Figure 5", "Passkeys by depth", _passkey_protocol, _passkey, depths=True),
        PaperTable("Figure 6", "A needle in a haystack", _needle_protocol, _needle, depths=True, window=MISTRAL),
        PaperTable("Figure 7", "Passkeys at random places", _far_protocol, _far),
        *dca_data.APPENDIX,
    ),
)
