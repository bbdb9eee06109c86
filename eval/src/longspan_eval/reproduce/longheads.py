"""The tables of LongHeads (Lu et al., 2024, arXiv 2402.10685), whose numbers are for a window of 4,096 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longspan.store import Tier
from longspan_eval.reproduce.ablations import parse_row
from longspan_eval.reproduce.figures import FOUND, against, median_of
from longspan_eval.reproduce.lab import Lab
from longspan_eval.reproduce.longheads_heads import ANALYSIS, REPORTS, SPLIT
from longspan_eval.reproduce.longheads_rows import WINDOW, ablations, few, lengths_of, method, rows
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.parts import INSIDE, SAID_INSIDE, data_cells, grid, perplexity_cells, too_long
from longspan_eval.reproduce.table import Cell, Paper, Table, missing_row
from longspan_eval.reproduce.texts import PG19, PROOF_PILE
from longspan_eval.study import spread

K = 1000  # the paper's "1k to 50k"; lengths such as 32k of a model are 1,024s

NO_OFFLOAD = "offloading is from a GPU to the host's memory, and this model runs in that memory"
PI_REASON = "PI needs a model that was fine-tuned with it, and rows of fine-tuned models are quoted, never rerun"
LONGBENCH = [  # LongBench-E for the tasks that it has
    "narrativeqa", "e-qasper", "e-multifieldqa-en", "e-hotpotqa", "e-2wikimqa", "musique", "e-gov-report", "qmsum",
    "e-multi-news", "e-trec", "e-triviaqa", "e-samsum", "e-passage-count", "e-passage-retrieval-en", "e-lcc",
    "e-repobench-p",
]  # fmt: skip


# Table 1: perplexity


def _stride(lab: Lab) -> int:
    return lab.choose(lab.tokens(256, WINDOW), max(lab.tokens(WINDOW // 2, WINDOW), 1))


def _windows(lab: Lab) -> int | None:
    return lab.samples if lab.scale == "paper" else lab.prompts(8, 8)


def _perplexity(lab: Lab) -> Sequence[Cell]:
    lengths = lengths_of(lab)
    cells = perplexity_cells(
        lab, rows(lab), (PG19, PROOF_PILE), lengths, stride=_stride(lab), mode="new", windows=_windows(lab)
    )
    return [*cells, missing_row("LongHeads w/ PI init", f"{lengths[0]:,}", "a model fine-tuned with PI", PI_REASON)]


def _perplexity_protocol(lab: Lab) -> str:
    count = _windows(lab)
    return (
        f"A window slides over the text by {_stride(lab):,} tokens and each scores the tokens new to it (the paper: "
        f"256 of a window of 4,096). Windows a cell: {'all' if count is None else f'{count}, from all of the text'}; "
        "they score the same tokens in every row and at every length."
    )


# Passkey and needle


def _passkey(lab: Lab) -> Sequence[Cell]:
    lengths = lab.lengths([WINDOW * n for n in lab.choose(range(1, 9), (1, 2, 4, 6, 8))], WINDOW)
    return grid(lab, few(lab), "passkey", lengths, lab.prompts(50, 6))


def _passkey_protocol(lab: Lab) -> str:
    return (
        f"Five digits in noise, at a random place; prompts a length: {lab.prompts(50, 6)} (the paper: 50, at 4k to 32k "
        "by 4k, which are 1 to 8 windows)."
    )


def needle_lengths(lab: Lab) -> list[int]:
    """1k to 50k by 3k at a window of 4,096."""
    return lab.lengths(lab.choose(range(K, 50 * K + 1, 3 * K), (4 * K, 10 * K, 25 * K, 49 * K)), WINDOW)


def _needle(lab: Lab) -> Sequence[Cell]:
    depths = spread(lab.choose(10, 3))
    return grid(lab, few(lab), "needle", needle_lengths(lab), lab.prompts(10, 1), depths)


def _needle_protocol(lab: Lab) -> str:
    return (
        f"One sentence in prose at {lab.choose(10, 3)} depths, {lab.prompts(10, 1)} prompts a depth (the paper: 10, at "
        "1k to 50k by 3k). Scored by the key facts named; no model judges."
    ) + lab.choose("", f" {SAID_INSIDE}")


# Table 2: LongBench


def _longbench(lab: Lab) -> Sequence[Cell]:
    lengths = lab.lengths([4 * WINDOW, 8 * WINDOW], WINDOW)
    samples = lab.samples if lab.scale == "paper" else lab.prompts(5, 5)
    return data_cells(lab, few(lab), [f"longbench-{name}" for name in LONGBENCH], lengths, samples)


def _longbench_protocol(lab: Lab) -> str:
    return "LongBench, and LongBench-E where it has the task, cut in the middle to 4 and 8 windows (16k and 32k)."


# Ablations


def _ablations(lab: Lab) -> Sequence[Cell]:
    window, lengths = lab.subject.window, lab.lengths([WINDOW * n for n in lab.choose((4, 8), (4,))], WINDOW)
    stock = {"stock": parse_row("stock")}
    inside = {INSIDE: stock["stock"]}
    made = {**stock, **inside, **ablations(lab)}
    cells = grid(lab, made, "passkey", lengths, lab.prompts(50, 5), column="passkey, {length:,}")
    # Windows of all lengths end at the same tokens, so that in the window the same ones are scored.
    measured = perplexity_cells(
        lab, made, (), [*lengths, window], stride=_stride(lab), mode="new", windows=_windows(lab)
    )
    for cell in measured:
        _, _, label = cell.row.partition(": ")
        if (label == INSIDE) == (cell.column == f"{window:,}"):
            columns = [cell.column] if label != INSIDE else [f"{length:,}" for length in lengths]
            cells += [replace(cell, row=label, column=f"perplexity, {column}") for column in columns]
    return cells


def _ablations_protocol(lab: Lab) -> str:
    return (
        f"Passkeys in noise, {lab.prompts(50, 5)} a length, and the perplexity of pydoc_data.topics. Numbers of tokens "
        f"are those of the paper at {WINDOW:,}, scaled: l = 256 is {lab.tokens(256, WINDOW)}. “Last” chunks are the "
        "local ones; the query's own is kept in every row."
    )


# Table 5: efficiency


def _efficiency(lab: Lab) -> Sequence[Cell]:
    shown = {
        "prefill": median_of("prefill", "seconds"),
        "a token": median_of("token", "seconds"),
        "memory": median_of("memory", "bytes"),
        "found": FOUND,
    }
    stock = parse_row("stock")
    cells = []
    for length in lab.lengths([WINDOW * n for n in lab.choose((1, 2, 4, 8, 32), (1, 2, 4, 8))], WINDOW):
        where, reason = f"{length:,} tokens", too_long(lab, length)
        tiers: dict[str, Tier] = {"LongHeads": "device", "LongHeads, offloaded": "host"}
        rounds = range(0 if reason else lab.prompts(10, 3))
        base = tuple(Timed(stock, length, n) for n in rounds)
        cells += [Cell(f"stock, {where}", column, show, base, missing=reason) for column, show in shown.items()]
        for label, tier in tiers.items():
            if tier == "host" and lab.device.type == "cpu":
                cells.append(missing_row(f"{label}, {where}", "prefill", "a GPU", NO_OFFLOAD))
                continue
            timed = tuple(Timed(method(lab), length, n, kv_tier=tier) for n in rounds)
            cells += [Cell(f"{label}, {where}", name, show, timed, missing=reason) for name, show in shown.items()]
            for name in ("prefill", "token"):
                pairs = timed + base
                show = against(name, Timed(stock, length, 0).told)
                column = f"{'a ' if name == 'token' else ''}{name}, over stock's"
                cells.append(Cell(f"{label}, {where}", column, show, pairs, missing=reason))
    return cells


def _efficiency_protocol(lab: Lab) -> str:
    return (
        f"{lab.prompts(10, 3)} passkey prompts a length, rows taking turns; medians, and ratios "
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
        Table("passkey", "Passkeys found", "the passkey figure", _passkey_protocol, _passkey, chart="lines"),
        Table("needle", "Needle in a haystack", "the needle figure", _needle_protocol, _needle, chart="lines"),
        Table("longbench", "LongBench", "Table 2", _longbench_protocol, _longbench),
        Table("ablations", "Ablations", "the ablation tables", _ablations_protocol, _ablations),
        ANALYSIS,
        REPORTS,
        Table("efficiency", "Seconds, memory and accuracy", "Table 5", _efficiency_protocol, _efficiency, True),
        SPLIT,
    ),
)
