"""Questions on a document that the model cannot have seen: a text and questions of the user's own.

``unseen/paper.txt`` is the text, such as a paper that is newer than the model; ``unseen/questions.jsonl`` has a
question and its answer a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan_eval.datafile import DataFile, FileRef, given
from longspan_eval.metrics import before_next, qa_f1
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

NAME, NEW_TOKENS = "unseen", 64
FILE, PAPER = "unseen/questions.jsonl", "unseen/paper.txt"
NEXT = "Question:"


def build(
    tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """The document, cut in the middle where it is too long, and a question."""
    record = given(record, depth, "questions on an unseen paper")
    ids = fit(
        tokenizer,
        "Read the paper and answer the question.\n\n",
        record["paper"].read().decode("utf-8-sig").strip(),
        f"\n\n{NEXT} {record['question']}\nAnswer:",
        length=length,
        new_tokens=NEW_TOKENS,
        cut="middle",
        chat=True,
    )
    return Example(ids, (record["answer"],), seed, None, None)


def score(prediction: str, references: Any) -> float:
    """F1 of the words before the model asks a question of its own."""
    return before_next(NEXT, qa_f1, prediction, references)


def asks_on(text: str) -> bool:
    """Whether an answer has ended because the model asks a question of its own."""
    return NEXT in text


def _check(record: Record) -> None:
    for name in ("question", "answer"):
        if not record[name].strip():
            raise ValueError(f"field {name!r} is empty")


def _unpack(records: list[Record], path: Path) -> list[Record]:
    paper = path.parent / Path(PAPER).name
    if not paper.is_file() or not paper.read_bytes().strip():
        raise DataError(f"{paper}: there is no text in it, and the questions are on that; put the paper there")
    return [{**record, "paper": FileRef.to(paper)} for record in records]


UNSEEN = Task(
    name=NAME,
    version=1,
    paper="An et al., 2024, arXiv 2402.17463, appendix A.5",
    summary="questions on a paper that the model has not seen",
    new_tokens=NEW_TOKENS,
    build=build,
    score=score,
    until=asks_on,
    data=DataFile(
        FILE,
        {"question": str, "answer": str},
        f"you: an object with your question and its answer a line, on a text of yours in {PAPER}",
        check=_check,
        unpack=_unpack,
    ),
)
