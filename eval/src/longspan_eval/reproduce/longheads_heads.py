"""Choices of LongHeads' heads (Figure 5, Table 3), answers that are split (Table 7), the text they can hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from longspan.errors import out_of_memory
from longspan.methods import LongHeads
from longspan.text.encode import beginning, encode
from longspan_eval.analysis.pictures import draw_selection
from longspan_eval.cell import Cell
from longspan_eval.datafile import read_records
from longspan_eval.figure import Figure
from longspan_eval.measure import Measure
from longspan_eval.reduce import Reduce, found, found_where, mean_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.cells import read_tasks
from longspan_eval.reproduce.longheads_methods import SAID_THEM, WINDOW, chunk_length, half, halved, lengths_of
from longspan_eval.reproduce.measures import Inspected, SplitPrompt
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperTable, missing_file
from longspan_eval.reproduce.texts import Text
from longspan_eval.spec import MethodSpec
from longspan_eval.tasks import TASKS

TASK, STOCK = TASKS["passkey"], parse_spec("stock")
REPORTS = "longbench-gov-report"
NO_CHOICE = "stock attends to every token, so there is no choice to look at"
_SHOWN: dict[str, Reduce] = {
    "cover rate": mean_of("cover", "share"),
    "Gini": mean_of("gini", "number"),
    **{
        f"hit@{top}, {of}": mean_of(f"{name}hit{top}", "share")
        for of, name in (("a head", ""), ("a layer", "layer "), ("the model", "model "))
        for top in (1, 5)
    },
    "found": found,
}


def _looks(session: PaperSession, row: MethodSpec, length: int, prompts: int) -> tuple[Inspected, ...]:
    return tuple(Inspected(row, length, n, task=TASK, window=half(session)) for n in range(prompts))


def _stock(session: PaperSession, length: int, prompts: int) -> tuple[SplitPrompt, ...]:
    """Stock's answers to the same prompts, cut into the same chunks."""
    return tuple(SplitPrompt(STOCK, length, n, task=TASK, chunk=chunk_length(session)) for n in range(prompts))


def _prompts(session: PaperSession) -> int:
    return session.prompts(50, 8)


def _missing(session: PaperSession, length: int, row: MethodSpec = STOCK) -> str | None:
    """Why a row has no prompt of a length, or None. Its attention window has to fit the model's, as in every table."""
    return session.unfit(row, length) or session.unbuilt(TASK, length)


def _analysis(session: PaperSession) -> Sequence[Cell]:
    cells: list[Cell] = []
    for length in lengths_of(session):
        reason, where = _missing(session, length), f"stock, {session.in_windows(length)}"
        cells += [Cell(where, column, missing=NO_CHOICE, brief="-") for column in list(_SHOWN)[:-1]]
        cells.append(
            Cell(where, "found", found, () if reason else _stock(session, length, _prompts(session)), missing=reason)
        )
    for label, row in halved(session).items():
        for length in lengths_of(session):
            reason = _missing(session, length, row)
            looks = () if reason else _looks(session, row, length, _prompts(session))
            for column, show in _SHOWN.items():
                cells.append(Cell(f"{label}, {session.in_windows(length)}", column, show, looks, missing=reason))
    return [*cells, *_reports(session)]


def _analysis_protocol(session: PaperSession) -> str:
    return (
        f"Passkeys in noise, {_prompts(session)} a length (the paper: 50), and the first tokens of "
        f"{session.prompts(5, 2)} government reports a length at their last token (the paper: 5), at an attention "
        f"window of {half(session):,} tokens (the paper: 2,048): 8 chunks of {chunk_length(session)}. "
        f"{SAID_THEM} Of all layers and heads, where the answer begins: the share of chunks that any keeps, and the "
        "Gini coefficient of how often. Hits are of the chunks that are chosen among (Eq 3), without the first and the "
        "local ones, which are kept whatever is chosen: of *a head*, how many heads have the answer among their best 1 "
        "or 5 of them; of *a layer*, of *the model*, whether it is among the 1 or 5 that most heads of the layer, or "
        "of all layers, have there. Prompts whose answer lies in chunks that are kept anyway have no hit and no miss."
    )


def _reports(session: PaperSession) -> Sequence[Cell]:
    columns, count = ("cover rate", "Gini"), session.prompts(5, 2)
    labels = [
        (f"{label}, {session.in_windows(length)} of a report", row, length)
        for label, row in halved(session).items()
        for length in lengths_of(session)
    ]
    data = TASKS[REPORTS].data
    assert data is not None
    absent = missing_file(session, "government reports", columns[0], data.name, data.source)
    if absent is not None:
        return [absent]
    records = read_records(TASKS[REPORTS], session.data_dir)
    texts = [beginning(session.tokenizer) + encode(session.tokenizer, record["context"]) for record in records]
    cells = []
    for label, row, length in labels:
        fit = [Text.of("government report", ids) for ids in texts if len(ids) >= length][:count]
        reason = session.unfit(row, length)
        if reason is None and not fit:
            reason = f"no report in longbench/gov_report.jsonl has {length:,} tokens"
        looks = () if reason else tuple(Inspected(row, length, text=text, window=half(session)) for text in fit)
        cells += [Cell(label, column, _SHOWN[column], looks, missing=reason) for column in columns]
    return cells


def _pictured(session: PaperSession) -> tuple[str, Inspected, str | None]:
    """What Figure 5 shows: its row, a prompt that Table 3 has too, and why it cannot be read, or None."""
    (label, row), (length,) = next(iter(halved(session).items())), session.lengths([4 * WINDOW], WINDOW)
    return f"{label}, {session.in_windows(length)}", _looks(session, row, length, 1)[0], _missing(session, length, row)


def _choices(session: PaperSession) -> Sequence[Cell]:
    label, look, reason = _pictured(session)
    shown = {column: _SHOWN[column] for column in ("cover rate", "Gini", "hit@5, a head", "found")}
    return [Cell(label, column, show, () if reason else (look,), missing=reason) for column, show in shown.items()]


def _choices_protocol(session: PaperSession) -> str:
    return (
        "The first prompt of Table 3 at 4 windows: which chunks each head of each layer keeps where the answer begins, "
        "and those that hold the answer, outlined (`figure-5.png`). The paper shows two pass keys and a summary, and "
        "does not say of which length."
    )


def _choices_picture(session: PaperSession, out: Path) -> list[str]:
    label, look, reason = _pictured(session)
    if reason is not None:
        return []
    try:
        seen = look.look(session)
    except Exception as error:
        if out_of_memory(error):  # as its cells say
            return []
        raise
    name = f"LongHeads' Figure 5 of {session.subject.name}: {label}"
    draw_selection(seen.choices, seen.chunks, out / "figure-5.png", answers=seen.answers, title=name)
    return ["figure-5.png"]


def split_lengths(session: PaperSession) -> list[int]:
    """4k to 32k by 4k, which with 100 prompts each are the paper's 800."""
    return session.lengths([WINDOW * n for n in session.choose(range(1, 9), (1, 2, 4, 8))], WINDOW)


def _split(session: PaperSession) -> Sequence[Cell]:
    parts = {"in one chunk": found_where("split", 0.0), "split over chunks": found_where("split", 1.0)}
    count = session.prompts(100, 8)
    cells = []
    for label, row in {"stock": STOCK, **halved(session)}.items():
        reasons = {length: _missing(session, length, row) for length in split_lengths(session)}
        fit = [length for length, reason in reasons.items() if reason is None]
        reason = None if fit else next(iter(reasons.values()))
        asked: tuple[Measure, ...] = tuple(
            one
            for length in fit
            for one in (_stock(session, length, count) if row is STOCK else _looks(session, row, length, count))
        )
        cells += [Cell(label, part, show, asked, missing=reason) for part, show in parts.items()]
    return cells


def _split_protocol(session: PaperSession) -> str:
    return (
        f"Passkeys in noise, {session.prompts(100, 8)} prompts a length, {len(split_lengths(session))} lengths (the "
        "paper: 800 in all), by whether a chunk's border cuts the digits at one of the two places where they stand. "
        f"{SAID_THEM}"
    )


def _held(session: PaperSession) -> Sequence[Cell]:
    cells = []
    shape, window = session.model.config.get_text_config(), session.subject.window
    heads, layers = shape.num_attention_heads, shape.num_hidden_layers
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    models = {
        "Llama-2-7B, 32 heads of 32 layers": (WINDOW, 32, 32, 32),
        f"this model, {heads} heads of {layers} layers": (window, layers, heads, kv_heads),
    }
    for model, (size, layers, *counts) in models.items():
        shapes = [(n, counts[0], counts[1]) for n in range(layers)]
        for chosen_by, share in (("each head", "head"), ("the group of a key head", "group")):
            tokens = LongHeads(share=share).resolve(size).heads_hold(size, shapes)  # type: ignore[arg-type]
            assert tokens is not None
            cells.append(Cell(model, f"chosen by {chosen_by}", figure=Figure(float(tokens), "number")))
    return cells


def _held_protocol(session: PaperSession) -> str:
    return (
        "Computed: |P| chunks x heads x layers, in tokens, if no two heads choose the same. Longer texts cannot be "
        "seen whole at any one token. `longspan inspect` says it of any model and method."
    )


CHOICES = (
    PaperTable("Figure 5", "Which chunks the heads keep", _choices_protocol, _choices, pictures=_choices_picture),
    PaperTable(
        "Table 3", "What the heads look at", _analysis_protocol, _analysis, reads=partial(read_tasks, (REPORTS,))
    ),
    PaperTable("Section 4.1", "The longest text that the heads can hold", _held_protocol, _held),
)
SPLIT = PaperTable("Table 7", "Answers that are split", _split_protocol, _split)
