"""Recall of ESA's reduced scores (Figure 2), and their cost (Eq 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from longspan.calibration import Calibration
from longspan_eval.cell import Cell
from longspan_eval.figure import Figure
from longspan_eval.reduce import mean_of, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.counts import Counted, Recalled, components_from
from longspan_eval.reproduce.esa_methods import INITIAL, LOCAL, REDUCED, TOP_K, WINDOW, K, own, sizes
from longspan_eval.reproduce.operations import Shape, Sizes, cache_overhead, limit, operation_ratio
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperTable, missing_row
from longspan_eval.reproduce.texts import at_hand

LLAMA = {
    "d_H 4,096, 8 of 32 heads for keys": Shape(4096, 1024, 32),
    "d_H 4,096, a key head each": Shape(4096, 4096, 32),
}
PCA = "principal components"


def _recall(session: PaperSession) -> Sequence[Cell]:
    length, queries = session.tokens(25_000, WINDOW), session.tokens(2_000, WINDOW)
    text = at_hand(session.tokenizer)
    if session.calibration is None:
        how = "make one with `longspan calibrate`, and give it with --calibration"
        return [missing_row("every layer", "reduced scores", "a calibration", how)]
    made = Calibration.load(session.calibration)
    count = session.prompts(5, 2)
    free = components_from(text)
    begins = range(0, free - length + 1, length)[:count]
    reason = session.too_long(length)
    if reason is None and not begins:
        reason = f"{text.name} has {free:,} tokens beside those of the {PCA}, fewer than {length:,}"
    sha256 = hashlib.sha256(session.calibration.read_bytes()).hexdigest()
    initial, local, top, _ = sizes(session)
    measures = () if reason else tuple(
        Recalled(
            parse_spec("stock"), length, begin, text=text, queries=queries, top=top, initial=initial, local=local,
            calibration=session.calibration, sha256=sha256,
        )
        for begin in begins
    )  # fmt: skip
    names = [f"layer {index}" for index in sorted(made.layers)]
    return [
        Cell(name, column, mean_of(f"{prefix}{name}", "share"), measures, missing=reason)
        for name in [*names, "mean"]
        for column, prefix in ((f"reduced scores ({made.solver})", ""), (PCA, "pca "))
    ]


def _recall_protocol(session: PaperSession) -> str:
    return (
        f"Of the {session.tokens(TOP_K, WINDOW):,} best-scored keys, how many are among as many under the reduced "
        f"scores, for the queries from {session.tokens(23_000, WINDOW):,} to {session.tokens(25_000, WINDOW):,} of "
        f"{at_hand(session.tokenizer).name} (the paper: 2,048, for 23k to 25k of Books3); read under DCA. The {PCA} "
        "are of the end of that text, which no prompt reaches into, and as large as the calibration."
    )


def _sizes(session: PaperSession) -> Sizes:
    made = None if session.calibration is None else Calibration.load(session.calibration)
    return Sizes(*sizes(session)[:3], None if made is None else made.reduced)


def _operations(session: PaperSession) -> Sequence[Cell]:
    cells = []
    paper = Sizes(INITIAL, LOCAL, TOP_K, REDUCED)
    for name, shape in LLAMA.items():
        for length in (16 * K, 32 * K, 64 * K, 128 * K, 256 * K):
            ratio = Figure(operation_ratio(length, shape, paper), "share")
            cells.append(Cell(f"computed: {name}, d' = {REDUCED}, {length:,} tokens", "operations", figure=ratio))
        name = f"computed: {name}, d' = {REDUCED}, without end"
        cells.append(Cell(name, "operations", figure=Figure(limit(shape, REDUCED), "share")))
        cells.append(Cell(name, "reduced keys", figure=Figure(cache_overhead(shape, REDUCED), "share")))
    shape, short = Shape.of(session.model), _sizes(session)
    row, text = own(session), at_hand(session.tokenizer)
    for length in session.lengths([n * K for n in (16, 32, 64, 128)], WINDOW):
        scores = "scores in full" if short.reduced is None else f"d' = {short.reduced}"
        label = f"this model, d_H {shape.channels:,}, {scores}, {length:,} tokens"
        computed = Figure(operation_ratio(length, shape, short), "share")
        cells.append(Cell(f"computed: {label}", "operations", figure=computed))
        if short.reduced is not None:
            more = Figure(cache_overhead(shape, short.reduced), "share")
            cells.append(Cell(f"computed: {label}", "reduced keys", figure=more))
        reason = session.too_long(length)
        if reason is None and len(text.ids) < length:
            reason = f"{text.name} has {len(text.ids):,} tokens, fewer than {length:,}"
        counted = () if reason else (Counted(row, length, text=text, reduced=short.reduced),)
        for column, figure in (("operations", "ratio"), ("reduced keys", "overhead")):
            cells.append(Cell(f"counted: {label}", column, median_of(figure, "share"), counted, missing=reason))
    return cells


def _operations_protocol(session: PaperSession) -> str:
    full = (
        " Scores of this model are in full, as no calibration is given: `d'` is then `d_Hkv`, and `4 d_H d' + 2 d'`, "
        "what reducing takes, is left out."
    )
    return (
        "Operations of one decoded token in a layer over those of full attention, as the paper's appendix A counts "
        "them: `((4 d_H + 3 H) (lI + lL + k + 1) + (2 d' + 1) lM + 4 d_H d' + 2 d') / ((4 d_H + 3 H) N)`; without end "
        "that is Eq 9, `(2 d' + 1) / (4 d_H + 3 H)`. Bytes of the reduced keys over those of keys and values: `d' / "
        "(2 d_Hkv)`. *Counted* is the same from the keys that the code scored and attended to at the last token, and "
        f"the bytes it holds.{full if session.calibration is None else ''}"
    )


TABLES = (
    PaperTable("Figure 2", "Recall of the reduced scores", _recall_protocol, _recall),
    PaperTable("Eq 9", "Operations and cache", _operations_protocol, _operations),
)
