"""The tables of LongHeads (Lu et al., 2024, arXiv 2402.10685), whose numbers are for a window of 4,096 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longspan.store import Tier
from longspan_eval.cell import Cell
from longspan_eval.reduce import against, found, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import INSIDE, SAID_INSIDE, data_cells, grid, perplexity_cells
from longspan_eval.reproduce.longheads_heads import ANALYSIS, REPORTS, SPLIT
from longspan_eval.reproduce.longheads_methods import WINDOW, ablations, few, lengths_of, method, methods
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, Table, missing_row
from longspan_eval.reproduce.texts import PG19, PROOF_PILE
from longspan_eval.studies.eval import spread

K = 1000  # the paper's "1k to 50k"; lengths such as 32k of a model are 1,024s

NO_OFFLOAD = "offloading is from a GPU to the host's memory, and this model runs in that memory"
PI_REASON = "PI needs a model that was fine-tuned with it, and rows of fine-tuned models are quoted, never rerun"
LONGBENCH = [  # LongBench-E for the tasks that it has
    "narrativeqa", "e-qasper", "e-multifieldqa-en", "e-hotpotqa", "e-2wikimqa", "musique", "e-gov-report", "qmsum",
    "e-multi-news", "e-trec", "e-triviaqa", "e-samsum", "e-passage-count", "e-passage-retrieval-en", "e-lcc",
    "e-repobench-p",
]  # fmt: skip


# Table 1: perplexity


def _stride(session: PaperSession) -> int:
    return session.choose(session.tokens(256, WINDOW), max(session.tokens(WINDOW // 2, WINDOW), 1))


def _perplexity(session: PaperSession) -> Sequence[Cell]:
    lengths = lengths_of(session)
    cells = perplexity_cells(
        session,
        methods(session),
        (PG19, PROOF_PILE),
        lengths,
        stride=_stride(session),
        mode="new",
        windows=session.at_most(8),
    )
    return [*cells, missing_row("LongHeads w/ PI init", f"{lengths[0]:,}", "a model fine-tuned with PI", PI_REASON)]


def _perplexity_protocol(session: PaperSession) -> str:
    count = session.at_most(8)
    return (
        f"A window slides over the text by {_stride(session):,} tokens and each scores the tokens new to it "
        "(the paper: 256 of a window of 4,096). Windows a cell: "
        f"{'all' if count is None else f'{count}, from all of the text'}; "
        "they score the same tokens in every row and at every length."
    )


# Passkey and needle


def _passkey(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([WINDOW * n for n in session.choose(range(1, 9), (1, 2, 4, 6, 8))], WINDOW)
    return grid(session, few(session), "passkey", lengths, session.prompts(50, 6))


def _passkey_protocol(session: PaperSession) -> str:
    return (
        f"Five digits in noise, at a random place; prompts a length: {session.prompts(50, 6)} "
        "(the paper: 50, at 4k to 32k by 4k, which are 1 to 8 windows)."
    )


def needle_lengths(session: PaperSession) -> list[int]:
    """1k to 50k by 3k at a window of 4,096."""
    return session.lengths(session.choose(range(K, 50 * K + 1, 3 * K), (4 * K, 10 * K, 25 * K, 49 * K)), WINDOW)


def _needle(session: PaperSession) -> Sequence[Cell]:
    depths = spread(session.choose(10, 3))
    return grid(session, few(session), "needle", needle_lengths(session), session.prompts(10, 1), depths)


def _needle_protocol(session: PaperSession) -> str:
    return (
        f"One sentence in prose at {session.choose(10, 3)} depths, {session.prompts(10, 1)} prompts a depth "
        "(the paper: 10, at 1k to 50k by 3k). Scored by the key facts named; no model judges."
    ) + session.choose("", f" {SAID_INSIDE}")


# Table 2: LongBench


def _longbench(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([4 * WINDOW, 8 * WINDOW], WINDOW)
    return data_cells(session, few(session), [f"longbench-{name}" for name in LONGBENCH], lengths, session.at_most(5))


def _longbench_protocol(session: PaperSession) -> str:
    return "LongBench, and LongBench-E where it has the task, cut in the middle to 4 and 8 windows (16k and 32k)."


# Ablations


def _ablations(session: PaperSession) -> Sequence[Cell]:
    window, lengths = (
        session.subject.window,
        session.lengths([WINDOW * n for n in session.choose((4, 8), (4,))], WINDOW),
    )
    stock = {"stock": parse_spec("stock")}
    inside = {INSIDE: stock["stock"]}
    made = {**stock, **inside, **ablations(session)}
    cells = grid(session, made, "passkey", lengths, session.prompts(50, 5), column="passkey, {length:,}")
    # Windows of all lengths end at the same tokens, so that in the window the same ones are scored.
    measured = perplexity_cells(
        session, made, (), [*lengths, window], stride=_stride(session), mode="new", windows=session.at_most(8)
    )
    for cell in measured:
        _, _, label = cell.row.partition(": ")
        if (label == INSIDE) == (cell.column == f"{window:,}"):
            columns = [cell.column] if label != INSIDE else [f"{length:,}" for length in lengths]
            cells += [replace(cell, row=label, column=f"perplexity, {column}") for column in columns]
    return cells


def _ablations_protocol(session: PaperSession) -> str:
    return (
        f"Passkeys in noise, {session.prompts(50, 5)} a length, and the perplexity of pydoc_data.topics. Numbers of "
        f"tokens are those of the paper at {WINDOW:,}, scaled: l = 256 is {session.tokens(256, WINDOW)}. “Last” chunks "
        "are the local ones; the query's own is kept in every row."
    )


# Table 5: efficiency


def _efficiency(session: PaperSession) -> Sequence[Cell]:
    shown = {
        "prefill": median_of("prefill", "seconds"),
        "a token": median_of("token", "seconds"),
        "memory": median_of("memory", "bytes"),
        "found": found,
    }
    stock = parse_spec("stock")
    cells = []
    for length in session.lengths([WINDOW * n for n in session.choose((1, 2, 4, 8, 32), (1, 2, 4, 8))], WINDOW):
        where, reason = f"{length:,} tokens", session.too_long(length)
        tiers: dict[str, Tier] = {"LongHeads": "device", "LongHeads, offloaded": "host"}
        rounds = range(0 if reason else session.prompts(10, 3))
        base = tuple(Timed(stock, length, n) for n in rounds)
        cells += [Cell(f"stock, {where}", column, show, base, missing=reason) for column, show in shown.items()]
        for label, tier in tiers.items():
            if tier == "host" and session.device.type == "cpu":
                cells.append(missing_row(f"{label}, {where}", "prefill", "a GPU", NO_OFFLOAD))
                continue
            timed = tuple(Timed(method(session), length, n, kv_tier=tier) for n in rounds)
            cells += [Cell(f"{label}, {where}", name, show, timed, missing=reason) for name, show in shown.items()]
            for name in ("prefill", "token"):
                column = f"{'a ' if name == 'token' else ''}{name}, over stock's"
                cells.append(Cell(f"{label}, {where}", column, against(name), timed, base, missing=reason))
    return cells


def _efficiency_protocol(session: PaperSession) -> str:
    return (
        f"{session.prompts(10, 3)} passkey prompts a length, rows taking turns; medians, and ratios "
        "within a round. Memory is the most in use above what was before the prompt, weights not counted."
    )


LONGHEADS = Paper(
    name="longheads",
    title="LongHeads: Multi-Head Attention is Secretly a Long Context Processor",
    cite="Lu et al., 2024, arXiv 2402.10685",
    models="Llama-2-7B and Llama-2-7B-Chat (window 4,096)",
    hardware="one A100",
    window=WINDOW,
    tables=(
        Table("perplexity", "Perplexity", "Table 1", _perplexity_protocol, _perplexity),
        Table("passkey", "Passkeys found", "the passkey figure", _passkey_protocol, _passkey, lines=True),
        Table("needle", "Needle in a haystack", "the needle figure", _needle_protocol, _needle, lines=True),
        Table("longbench", "LongBench", "Table 2", _longbench_protocol, _longbench),
        Table("ablations", "Ablations", "the ablation tables", _ablations_protocol, _ablations),
        ANALYSIS,
        REPORTS,
        Table("efficiency", "Seconds, memory and accuracy", "Table 5", _efficiency_protocol, _efficiency, True),
        SPLIT,
    ),
)
