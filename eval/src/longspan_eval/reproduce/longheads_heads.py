"""What LongHeads' heads look at: Table 3, on passkeys and on reports, and Table 7, on answers that are split."""

from __future__ import annotations

from collections.abc import Sequence

from longspan_eval.cell import Cell
from longspan_eval.datafile import read_records
from longspan_eval.filler import encode, start
from longspan_eval.measure import Measure
from longspan_eval.reduce import Reduce, found, found_where, mean_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.longheads_methods import WINDOW, analysed, half, lengths_of
from longspan_eval.reproduce.measures import Inspected, SplitPrompt
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Table, missing_file
from longspan_eval.reproduce.texts import Text
from longspan_eval.spec import MethodSpec
from longspan_eval.tasks import TASKS

TASK, STOCK = TASKS["passkey-prose"], parse_spec("stock")
NO_CHOICE = "stock attends to every token, so there is no choice to look at"
_SHOWN: dict[str, Reduce] = {
    "cover rate": mean_of("cover", "share"),
    "Gini": mean_of("gini", "number"),
    "hit@1": mean_of("hit1", "share"),
    "hit@5": mean_of("hit5", "share"),
    "found": found,
}


def _looks(session: PaperSession, row: MethodSpec, length: int) -> tuple[Inspected, ...]:
    return tuple(Inspected(row, length, n, task=TASK, window=half(session)) for n in range(_prompts(session)))


def _stock(session: PaperSession, length: int) -> tuple[SplitPrompt, ...]:
    """Stock's answers to the same prompts, cut into the same chunks."""
    return tuple(
        SplitPrompt(STOCK, length, n, task=TASK, chunk=session.tokens(256, WINDOW)) for n in range(_prompts(session))
    )


def _prompts(session: PaperSession) -> int:
    return session.prompts(50, 8)


def _missing(session: PaperSession, length: int) -> str | None:
    return session.too_long(length) or session.unbuilt(TASK, length)


def _analysis(session: PaperSession) -> Sequence[Cell]:
    cells = []
    for length in lengths_of(session):
        reason, where = _missing(session, length), f"stock, {length:,} tokens"
        cells += [Cell(where, column, missing=NO_CHOICE, brief="-") for column in list(_SHOWN)[:-1]]
        cells.append(Cell(where, "found", found, () if reason else _stock(session, length), missing=reason))
    for label, row in analysed(session).items():
        for length in lengths_of(session):
            reason = _missing(session, length)
            looks = () if reason else _looks(session, row, length)
            for column, show in _SHOWN.items():
                cells.append(Cell(f"{label}, {length:,} tokens", column, show, looks, missing=reason))
    return cells


def _analysis_protocol(session: PaperSession) -> str:
    return (
        f"Passkeys in prose, {_prompts(session)} a length, at an attention window of {half(session):,} tokens "
        f"(the paper: 2,048): 8 chunks of {session.tokens(256, WINDOW)}. Of all layers and heads, where the answer "
        "begins: the share of chunks that any chooses, the Gini coefficient of how often, and how often the answer is "
        "in the best 1 and in the best 5."
    )


def _reports(session: PaperSession) -> Sequence[Cell]:
    columns, count = ("cover rate", "Gini"), session.prompts(5, 2)
    labels = [(f"{label}, {length:,} tokens", row, length) for label, row in analysed(session).items()
              for length in lengths_of(session)]  # fmt: skip
    data = TASKS["longbench-gov-report"].data
    assert data is not None
    absent = missing_file(session, "government reports", columns[0], data.name, data.source)
    if absent is not None:
        return [absent]
    records = read_records(TASKS["longbench-gov-report"], session.data_dir)
    texts = [start(session.tokenizer) + encode(session.tokenizer, record["context"]) for record in records]
    cells = []
    for label, row, length in labels:
        fit = [Text.of("government report", ids) for ids in texts if len(ids) >= length][:count]
        reason = session.too_long(length)
        if reason is None and not fit:
            reason = f"no report in longbench/gov_report.jsonl has {length:,} tokens"
        looks = () if reason else tuple(Inspected(row, length, text=text, window=half(session)) for text in fit)
        cells += [Cell(label, column, _SHOWN[column], looks, missing=reason) for column in columns]
    return cells


def _reports_protocol(session: PaperSession) -> str:
    return (
        f"The first tokens of {session.prompts(5, 2)} government reports a length (the paper: 5), at their last token."
    )


def _split(session: PaperSession) -> Sequence[Cell]:
    parts = {"in one chunk": found_where("split", 0.0), "split over chunks": found_where("split", 1.0)}
    reasons = {length: _missing(session, length) for length in lengths_of(session)}
    fit = [length for length, reason in reasons.items() if reason is None]
    reason = None if fit else next(iter(reasons.values()))
    measures: dict[str, tuple[Measure, ...]] = {
        "stock": tuple(one for length in fit for one in _stock(session, length))
    }
    for label, row in analysed(session).items():
        measures[label] = tuple(one for length in fit for one in _looks(session, row, length))
    return [
        Cell(label, part, show, asked, missing=reason)
        for label, asked in measures.items()
        for part, show in parts.items()
    ]


def _split_protocol(session: PaperSession) -> str:
    return (
        "The prompts of the analysis, all lengths together, by whether a chunk's border cuts the digits at one of the "
        "two places where they stand."
    )


ANALYSIS = Table("analysis", "What the heads look at", "Table 3, passkeys", _analysis_protocol, _analysis)
REPORTS = Table(
    "analysis-reports", "What the heads look at in reports", "Table 3, reports", _reports_protocol, _reports
)
SPLIT = Table("split", "Answers that are split", "Table 7", _split_protocol, _split)
