"""The tables of Dual Chunk Attention that read files: its Tables 3 to 7."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from longspan_eval.cell import Cell
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import answers, found
from longspan_eval.reproduce.cells import Methods, data_cells, inside, read_tasks
from longspan_eval.reproduce.dca_methods import WINDOW, K, some
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperTable, missing_file
from longspan_eval.reproduce.unseen import EASY, FILE, PAPER, SOURCE, UNSEEN, read_unseen, records_of

FEW_SHOT = tuple(f"fewshot-{name}" for name in ("narrativeqa", "qasper", "quality", "qmsum"))
ZERO_SHOT = tuple(f"leval-{name}" for name in ("toefl", "quality", "coursera", "sfiction"))
EXAMPLES = tuple(
    tuple(f"fewshot-{name}{choice}" for name in ("qasper", "quality", "qmsum")) for choice in ("", "-best", "-worst")
)
ROWS = ("stock", "dynamic NTK", "DCA")
SAID_CUT = (
    " Stock inside the window has the same prompts cut to the window. The paper does not say to what its rows without "
    "a method are cut; in its Tables 1 and 2 they fail beyond the window."
)


def _rows(session: PaperSession, length: int) -> Methods:
    """The rows, and if prompts may be longer than the window, stock with prompts that are not."""
    rows = some(session, *ROWS)
    return inside(rows) if session.subject.window < length else rows


def _said_cut(session: PaperSession, length: int) -> str:
    return SAID_CUT if session.subject.window < length else ""


def _length(session: PaperSession) -> list[int]:
    return session.lengths([16 * K], WINDOW)


def _few_shot(session: PaperSession) -> Sequence[Cell]:
    lengths = _length(session)
    return data_cells(session, _rows(session, *lengths), FEW_SHOT, lengths, session.at_most(5))


def _few_shot_protocol(session: PaperSession) -> str:
    return (
        "0, 2, 2 and 1 examples; F1, F1, exact match and the geometric mean of ROUGE, here the mean of each answer's, "
        "which is never more than SCROLLS' own, made of the means, and has an interval; cut from the left to "
        f"{_length(session)[0]:,} tokens (the paper: 16,384).{_said_cut(session, *_length(session))}"
    )


def _zero_shot(session: PaperSession) -> Sequence[Cell]:
    lengths = session.lengths([32 * K], WINDOW)
    return data_cells(session, _rows(session, *lengths), ZERO_SHOT, lengths, session.at_most(5))


def _zero_shot_protocol(session: PaperSession) -> str:
    return (
        "L-Eval's four closed-ended tasks, for chat models; cut to "
        f"{session.tokens(32 * K, WINDOW):,} tokens, more than the paper's longest documents (27k). SFiction is the "
        "mean of loyalty (by the story) and fact (without it), half of the questions each. "
        "The prompts are in words of our own, so figures are not quite the paper's. Of Coursera, whose questions have "
        "several right options, an answer with some of them and no wrong one counts a quarter: L-Eval's rule, where "
        "the paper says exact match."
        f"{_said_cut(session, session.tokens(32 * K, WINDOW))}"
    )


def _examples(session: PaperSession) -> Sequence[Cell]:
    made = []
    for tasks in EXAMPLES:
        made += data_cells(session, some(session, "stock", "DCA"), tasks, _length(session), session.at_most(5))
    return [cell for cell in made if not cell.row.startswith("mean")]  # three tasks of three protocols have none


def _examples_protocol(session: PaperSession) -> str:
    return "Examples at random, and those whose questions match best and worst by BM25."


def _unseen(session: PaperSession) -> Sequence[Cell]:
    absent = missing_file(session, "the paper", "F1", PAPER, SOURCE)
    if absent is not None:
        return [absent]
    assert session.data_dir is not None
    length = session.tokens(24 * K, WINDOW)
    records = records_of(session.data_dir)
    reason = session.too_long(length)
    # A figure of its own for each of the two tables; other questions than the paper's are of none.
    own = not (session.data_dir / FILE).is_file()
    parts = {"F1, easy (Table 6)": slice(len(EASY)), "F1, hard (Table 7)": slice(len(EASY), None)} if own else {}
    cells = []
    for label, row in some(session, *ROWS).items():
        asked = (
            ()
            if reason
            else tuple(TaskPrompt(row, length, n, task=UNSEEN, record=one) for n, one in enumerate(records))
        )
        for column, part in {**parts, "F1": slice(None)}.items():
            cells.append(Cell(label, column, found, asked[part], missing=reason))
        for n, one in enumerate(records):
            cells.append(Cell(label, f"{n + 1}. {one['question']}", answers, asked[n : n + 1], missing=reason))
    return cells


def _unseen_protocol(session: PaperSession) -> str:
    return (
        f"`{PAPER}` of the data folder is read, and asked on: by `unseen/questions.jsonl` if that is there, else by "
        "the paper's 6 easy and 4 hard questions in words of our own, which are on the paper itself. Its prompt had "
        f"19,388 tokens; the text is cut in the middle to {session.tokens(24 * K, WINDOW):,}. F1 against the answers "
        f"expected, and what was answered."
    )


TEXT = (
    PaperTable("Table 3", "Few-shot tasks", _few_shot_protocol, _few_shot, reads=partial(read_tasks, FEW_SHOT)),
    PaperTable("Table 4", "Zero-shot tasks", _zero_shot_protocol, _zero_shot, reads=partial(read_tasks, ZERO_SHOT)),
)

APPENDIX = (
    PaperTable(
        "Table 5", "Choice of examples", _examples_protocol, _examples, reads=partial(read_tasks, sum(EXAMPLES, ()))
    ),
    PaperTable(
        "Table 6",
        "A paper that the model has not seen",
        _unseen_protocol,
        _unseen,
        also=("Table 7",),
        reads=read_unseen,
    ),
)
