"""What LongHeads' heads look at: Table 3, on passkeys and on reports, and Table 7, on answers that are split."""

from __future__ import annotations

from collections.abc import Sequence

from longspan_eval.datafile import read_records
from longspan_eval.filler import encode, start
from longspan_eval.reproduce.ablations import parse_row
from longspan_eval.reproduce.figures import FOUND, Show, found_where, mean_of
from longspan_eval.reproduce.lab import Lab, Measure
from longspan_eval.reproduce.longheads_rows import WINDOW, analysed, half, lengths_of
from longspan_eval.reproduce.measures import Cut, Looked
from longspan_eval.reproduce.parts import too_long
from longspan_eval.reproduce.table import Cell, Table, missing_file
from longspan_eval.reproduce.texts import Text
from longspan_eval.rows import Row
from longspan_eval.tasks import TASKS

TASK, STOCK = TASKS["passkey-prose"], parse_row("stock")
NO_CHOICE = "stock attends to every token, so there is no choice to look at"
_SHOWN: dict[str, Show] = {
    "cover rate": mean_of("cover", "share"),
    "Gini": mean_of("gini", "number"),
    "hit@1": mean_of("hit1", "share"),
    "hit@5": mean_of("hit5", "share"),
    "found": FOUND,
}


def _looks(lab: Lab, row: Row, length: int) -> tuple[Looked, ...]:
    return tuple(Looked(row, length, n, TASK, window=half(lab)) for n in range(_prompts(lab)))


def _stock(lab: Lab, length: int) -> tuple[Cut, ...]:
    """Stock's answers to the same prompts, cut into the same chunks."""
    return tuple(Cut(STOCK, TASK, length, n, chunk=lab.tokens(256, WINDOW)) for n in range(_prompts(lab)))


def _prompts(lab: Lab) -> int:
    return lab.prompts(50, 8)


def _missing(lab: Lab, length: int) -> str | None:
    return too_long(lab, length) or lab.unbuilt(TASK, length)


def _analysis(lab: Lab) -> Sequence[Cell]:
    cells = []
    for length in lengths_of(lab):
        reason, where = _missing(lab, length), f"stock, {length:,} tokens"
        cells += [Cell(where, column, missing=NO_CHOICE, brief="-") for column in list(_SHOWN)[:-1]]
        cells.append(Cell(where, "found", FOUND, () if reason else _stock(lab, length), missing=reason))
    for label, row in analysed(lab).items():
        for length in lengths_of(lab):
            reason = _missing(lab, length)
            looks = () if reason else _looks(lab, row, length)
            for column, show in _SHOWN.items():
                cells.append(Cell(f"{label}, {length:,} tokens", column, show, looks, missing=reason))
    return cells


def _analysis_protocol(lab: Lab) -> str:
    return (
        f"Passkeys in prose, {_prompts(lab)} a length, at an attention window of {half(lab):,} tokens (the paper: "
        f"2,048): 8 chunks of {lab.tokens(256, WINDOW)}. Of all layers and heads, where the answer begins: the share "
        "of chunks that any chooses, the Gini coefficient of how often, and how often the answer is in the best 1 and "
        "in the best 5."
    )


def _reports(lab: Lab) -> Sequence[Cell]:
    columns, count = ("cover rate", "Gini"), lab.prompts(5, 2)
    labels = [(f"{label}, {length:,} tokens", row, length) for label, row in analysed(lab).items()
              for length in lengths_of(lab)]  # fmt: skip
    data = TASKS["longbench-gov-report"].data
    assert data is not None
    absent = missing_file(lab, "government reports", columns[0], data.name, data.source)
    if absent is not None:
        return [absent]
    records = read_records(TASKS["longbench-gov-report"], lab.data_dir)
    texts = [start(lab.tokenizer) + encode(lab.tokenizer, record["context"]) for record in records]
    cells = []
    for label, row, length in labels:
        fit = [Text.of("government report", ids) for ids in texts if len(ids) >= length][:count]
        reason = too_long(lab, length)
        if reason is None and not fit:
            reason = f"no report in longbench/gov_report.jsonl has {length:,} tokens"
        looks = () if reason else tuple(Looked(row, length, text=text, window=half(lab)) for text in fit)
        cells += [Cell(label, column, _SHOWN[column], looks, missing=reason) for column in columns]
    return cells


def _reports_protocol(lab: Lab) -> str:
    return f"The first tokens of {lab.prompts(5, 2)} government reports a length (the paper: 5), at their last token."


def _split(lab: Lab) -> Sequence[Cell]:
    parts = {"in one chunk": found_where("split", 0.0), "split over chunks": found_where("split", 1.0)}
    reasons = {length: _missing(lab, length) for length in lengths_of(lab)}
    fit = [length for length, reason in reasons.items() if reason is None]
    reason = None if fit else next(iter(reasons.values()))
    measures: dict[str, tuple[Measure, ...]] = {"stock": tuple(one for length in fit for one in _stock(lab, length))}
    for label, row in analysed(lab).items():
        measures[label] = tuple(one for length in fit for one in _looks(lab, row, length))
    return [
        Cell(label, part, show, asked, missing=reason)
        for label, asked in measures.items()
        for part, show in parts.items()
    ]


def _split_protocol(lab: Lab) -> str:
    return (
        "The prompts of the analysis, all lengths together, by whether a chunk's border cuts the digits at one of the "
        "two places where they stand."
    )


ANALYSIS = Table("analysis", "What the heads look at", "Table 3, passkeys", _analysis_protocol, _analysis)
REPORTS = Table(
    "analysis-reports", "What the heads look at in reports", "Table 3, reports", _reports_protocol, _reports
)
SPLIT = Table("split", "Answers that are split", "Table 7", _split_protocol, _split)
