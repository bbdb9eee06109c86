"""The tables of ESA (Wang et al., 2025, arXiv 2502.14477), whose numbers are for a window of 8,192 tokens."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from longspan.calibration import Calibration
from longspan.methods import InfLLM, Method
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.reduce import mean_of, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import INSIDE, SAID_INSIDE, data_cells, grid
from longspan_eval.reproduce.counts import Counted, Recalled
from longspan_eval.reproduce.longheads import LONGBENCH
from longspan_eval.reproduce.operations import Shape, Sizes, cache_overhead, limit, operation_ratio
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, Table, missing_row
from longspan_eval.reproduce.texts import at_hand
from longspan_eval.spec import MethodSpec

WINDOW = 8192
K = 1024
INITIAL, LOCAL, TOP_K, QUERY_CHUNK, REDUCED = 128, 4096, 2048, 512, 128  # lI, lL, k, lC, d'
LLAMA = {
    "d_H 4,096, 8 of 32 heads for keys": Shape(4096, 1024, 32),
    "d_H 4,096, a key head each": Shape(4096, 4096, 32),
}
MADE = (
    "infinitebench-passkey",
    "infinitebench-number",
    "infinitebench-kv",
    "infinitebench-math-find",
    "counting-stars",
    "multi-needle",
)
EASY = "passkey-prose"  # not the paper's: what a small model can do at all


def method(session: PaperSession, more: str = "") -> MethodSpec:
    """ESA with the paper's numbers of tokens."""
    initial, local, top_k, query_chunk = (session.tokens(n, WINDOW) for n in (INITIAL, LOCAL, TOP_K, QUERY_CHUNK))
    text = f"esa:initial={initial},local={local},top_k={top_k},query_chunk={query_chunk}"
    return parse_spec(f"{text},{more}" if more else text)


def reduced(session: PaperSession) -> MethodSpec | None:
    """The same with reduced scores, where there is a calibration."""
    return None if session.calibration is None else replace(method(session), calibration=session.calibration)


def methods(session: PaperSession) -> dict[str, MethodSpec]:
    """Full attention, stock or with angles scaled to the length; and methods that keep as many tokens as ESA does."""
    window = session.subject.window
    initial, local, top_k = (session.tokens(n, WINDOW) for n in (INITIAL, LOCAL, TOP_K))
    block = InfLLM().resolve(window)
    assert isinstance(block, InfLLM) and block.block is not None
    size = math.gcd(block.block, top_k)  # whole blocks, and exactly as many tokens
    made = {
        "stock": parse_spec("stock"),
        "NTK": parse_spec("ntk"),
        "YaRN": parse_spec("yarn"),
        "StreamingLLM": parse_spec(f"streaming-llm:sinks={initial},recent={local + top_k}"),
        "LM-Infinite": parse_spec(f"lm-infinite:sinks={initial},recent={local + top_k},cap={local + top_k}"),
        "InfLLM": parse_spec(f"infllm:initial={initial},local={local},block={size},blocks={top_k // size}"),
        "ESA": method(session),
    }
    short = reduced(session)
    return made if short is None else {**made, "ESA, reduced scores": short}


def kept(method: Method, window: int) -> int:
    """How many tokens a query far beyond the window attends to, those of its own query chunk aside."""
    budget = method.resolve(window).selection(window).budget
    if budget is None:
        raise ValueError(f"{method.name} keeps no fixed number of tokens")
    return budget


def _tasks(
    session: PaperSession, made: dict[str, MethodSpec], tasks: Sequence[str], lengths: Sequence[int], samples: int
) -> list[Cell]:
    cells = [
        cell for name in tasks for cell in grid(session, made, name, lengths, samples, column=f"{name}, {{length:,}}")
    ]
    return sorted(cells, key=lambda cell: list(made).index(cell.row))


def _lengths(session: PaperSession) -> list[int]:
    return session.lengths(session.choose([n * K for n in (32, 64, 128, 256)], [8 * K, 32 * K]), WINDOW)


def _equal(session: PaperSession) -> Sequence[Cell]:
    tasks = session.choose(MADE, (EASY, *MADE))
    return _tasks(session, methods(session), tasks, _lengths(session), session.prompts(50, 4))


def _equal_protocol(session: PaperSession) -> str:
    numbers = ", ".join(f"{session.tokens(n, WINDOW):,} {what}" for n, what in
                        ((INITIAL, "first"), (LOCAL, "local"), (TOP_K, "chosen")))  # fmt: skip
    said = (
        f"Each method that selects keeps as many tokens: {numbers} (the paper: 128, 4,096, 2,048 at a window of "
        f"8,192). {session.prompts(50, 4)} made prompts a cell, filled to the length."
    )
    if session.scale == "quick":
        said += f" {SAID_INSIDE} {EASY} is not the paper's, but what a small model can do."
    return said


def proximities(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows of the ablation of ε."""
    return {f"ε = {n}": method(session, f"proximity={n}") for n in (0, 1, 3, 5)}


def _proximity(session: PaperSession) -> Sequence[Cell]:
    tasks = ("infinitebench-kv", "multi-needle")
    lengths = session.lengths(session.choose([32 * K, 128 * K], [32 * K]), WINDOW)
    stock = parse_spec("stock")
    made = {"stock": stock, INSIDE: stock, **proximities(session)}
    return _tasks(session, made, session.choose(tasks, (EASY, *tasks)), lengths, session.prompts(50, 4))


def _proximity_protocol(session: PaperSession) -> str:
    return (
        f"A token takes the best score within ε of it (Eq 8). InfiniteBench's KV and NeedleBench's needles, "
        f"{session.prompts(50, 4)} prompts a cell." + session.choose("", f" {SAID_INSIDE} {EASY} is not the paper's.")
    )


# Recall of the reduced scores


def _recall(session: PaperSession) -> Sequence[Cell]:
    length, queries = session.tokens(25_000, WINDOW), session.tokens(2_000, WINDOW)
    text = at_hand(session.tokenizer)
    if session.calibration is None:
        how = "make one with `longspan calibrate`, and give it with --calibration"
        return [missing_row("every layer", text.name, "a calibration", how)]
    made = Calibration.load(session.calibration)
    count = session.prompts(5, 3)
    begins = range(0, len(text.ids) - length + 1, length)[:count]
    reason = session.too_long(length)
    if reason is None and not begins:
        reason = f"{text.name} has {len(text.ids):,} tokens, fewer than {length:,}"
    sha256 = hashlib.sha256(session.calibration.read_bytes()).hexdigest()
    top = session.tokens(TOP_K, WINDOW)
    measures = () if reason else tuple(
        Recalled(
            parse_spec("stock"), length, begin, text=text, queries=queries, top=top, calibration=session.calibration,
            sha256=sha256,
        )
        for begin in begins
    )  # fmt: skip
    names = [f"layer {index}" for index in sorted(made.layers)]
    return [Cell(name, text.name, mean_of(name, "share"), measures, missing=reason) for name in [*names, "mean"]]


def _recall_protocol(session: PaperSession) -> str:
    return (
        f"Of the {session.tokens(TOP_K, WINDOW):,} best-scored keys, how many are among as many under the reduced "
        f"scores, for the queries from {session.tokens(23_000, WINDOW):,} to {session.tokens(25_000, WINDOW):,} "
        "(the paper: 2,048, for 23k to 25k); read under DCA."
    )


# Operations (Eq 9) and the cache


def _sizes(session: PaperSession) -> Sizes:
    made = None if session.calibration is None else Calibration.load(session.calibration)
    shape = Shape.of(session.model)
    # Without a calibration scores are exact: every channel of the keys.
    short = shape.kv_channels if made is None else made.reduced
    initial, local, top_k = (session.tokens(n, WINDOW) for n in (INITIAL, LOCAL, TOP_K))
    return Sizes(initial, local, top_k, short)


def _operations(session: PaperSession) -> Sequence[Cell]:
    cells = []
    sizes = Sizes(INITIAL, LOCAL, TOP_K, REDUCED)
    for name, shape in LLAMA.items():
        for length in (16 * K, 32 * K, 64 * K, 128 * K, 256 * K):
            ratio = Figure(operation_ratio(length, shape, sizes), "share")
            cells.append(Cell(f"computed: {name}, d' = {REDUCED}, {length:,} tokens", "operations", figure=ratio))
        name = f"computed: {name}, d' = {REDUCED}, without end"
        cells.append(Cell(name, "operations", figure=Figure(limit(shape, REDUCED), "share")))
        cells.append(Cell(name, "reduced keys", figure=Figure(cache_overhead(shape, REDUCED), "share")))
    shape, own = Shape.of(session.model), _sizes(session)
    row, text = reduced(session) or method(session), at_hand(session.tokenizer)
    for length in session.lengths([n * K for n in (16, 32, 64, 128)], WINDOW):
        label = f"this model, d_H {shape.channels:,}, d' = {own.reduced}, {length:,} tokens"
        computed = Figure(operation_ratio(length, shape, own), "share")
        cells.append(Cell(f"computed: {label}", "operations", figure=computed))
        if session.calibration is not None:
            more = Figure(cache_overhead(shape, own.reduced), "share")
            cells.append(Cell(f"computed: {label}", "reduced keys", figure=more))
        reason = session.too_long(length)
        if reason is None and len(text.ids) < length:
            reason = f"{text.name} has {len(text.ids):,} tokens, fewer than {length:,}"
        counted = () if reason else (Counted(row, length, text=text, reduced=own.reduced),)
        for column, figure in (("operations", "ratio"), ("reduced keys", "overhead")):
            cells.append(Cell(f"counted: {label}", column, median_of(figure, "share"), counted, missing=reason))
    return cells


def _operations_protocol(session: PaperSession) -> str:
    return (
        "Operations of one decoded token in a layer over those of full attention, as the paper's appendix A counts "
        "them: `((4 d_H + 3 H) (lI + lL + k + 1) + (2 d' + 1) lM + 4 d_H d' + 2 d') / ((4 d_H + 3 H) N)`; without end "
        "that is Eq 9, `(2 d' + 1) / (4 d_H + 3 H)`. Bytes of the reduced keys over those of keys and values: `d' / "
        "(2 d_Hkv)`. *Counted* is the same from the keys that the code scored and attended to at the last token, and "
        "the bytes it holds."
    )


# From data


def _longbench(session: PaperSession) -> Sequence[Cell]:
    tasks = [f"longbench-{name}" for name in LONGBENCH]
    return data_cells(session, methods(session), tasks, session.lengths([32 * K], WINDOW), session.at_most(5))


def _infinitebench(session: PaperSession) -> Sequence[Cell]:
    tasks = ("infinitebench-en-mc", "infinitebench-code-debug")
    return data_cells(session, methods(session), tasks, session.lengths([128 * K], WINDOW), session.at_most(5))


def _data_protocol(session: PaperSession) -> str:
    return "The official prompts and scores, cut in the middle to the length."


ESA_PAPER = Paper(
    name="esa",
    title="Unshackling Context Length: An Efficient Selective Attention Approach through Query-Key Compression",
    cite="Wang et al., 2025, arXiv 2502.14477",
    models="Llama-3-8B-Instruct (window 8k) and Mistral-7B-Instruct-v0.2 (window 32k)",
    hardware="four A800s",
    window=WINDOW,
    tables=(
        Table("equal", "Baselines at equal token counts", "Tables 2 to 4", _equal_protocol, _equal),
        Table("proximity", "Proximity influence", "Table 5", _proximity_protocol, _proximity, whole=True),
        Table("recall", "Recall of the reduced scores", "Figure 2", _recall_protocol, _recall),
        Table("operations", "Operations and cache", "Eq 9", _operations_protocol, _operations, whole=True),
        Table("longbench", "LongBench", "Table 1", _data_protocol, _longbench),
        Table("infinitebench", "InfiniteBench", "Table 2", _data_protocol, _infinitebench),
    ),
)
