"""InfiniteBench's two multiple-choice tasks (Zhang et al., 2024): En.MC over books and Code.Debug over repositories.

Prompts are the official ones for base models (MIT licence), and so are answer lengths and letter rules; a prompt that
is too long loses its middle. With a chat template the words that lead up to the answer come after it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from longspan_eval import letters
from longspan_eval.datafile import DataFile, given
from longspan_eval.metrics import Score
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

PAPER = "Zhang et al., 2024, arXiv 2402.13718"
SOURCE = "xinrongzhang2022/InfiniteBench on Hugging Face"
FIELDS = {"context": str, "input": str, "answer": (list[str], str), "options": list[str]}


class ChoiceDataset(NamedTuple):
    """Strings before the text, after it, and right before the answer; the most tokens of an answer; its score."""

    before: str
    after: str
    lead: str
    new_tokens: int
    score: Score


_OPTIONS = "A. {0}\nB. {1}\nC. {2}\nD. {3}\n\n"
BOOK = ChoiceDataset(
    "Read the book and answer the question.\n\n",
    "\n\nQuestion: {question}\n" + _OPTIONS,
    "The letter of the correct answer is",
    40,
    letters.book_choice,
)
DEBUG = ChoiceDataset(
    "Following is a Python code where exactly one of the functions/methods has a deliberate error that makes it "
    "crash.\n\n",
    "\n\nOptions:\n" + _OPTIONS,
    "The correct option is:",
    5,
    letters.code_debug,
)


def build(
    dataset: ChoiceDataset,
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
) -> Example:
    """The text, its question and four options."""
    record = given(record, depth, "InfiniteBench")
    ids = fit(
        tokenizer,
        dataset.before,
        record["context"],
        dataset.after.format(*record["options"], question=record["input"]),
        length=length,
        new_tokens=dataset.new_tokens,
        cut="middle",
        chat=True,
        lead=dataset.lead,
    )
    return Example(ids, _right(record), seed, None, None)


def _right(record: Record) -> tuple[str, str]:
    """The right option's text and its letter."""
    answer = record["answer"]
    text = answer if isinstance(answer, str) else answer[0]
    return text, "ABCD"[record["options"].index(text)]


def _check(record: Record) -> None:
    if len(record["options"]) != 4 or not all(record["options"]):
        raise ValueError(f"field 'options' must hold four options, not {record['options']!r}")
    answer = record["answer"]
    texts = [answer] if isinstance(answer, str) else answer
    if not texts or texts[0] not in record["options"]:
        raise ValueError(f"field 'answer' must begin with one of the options, not {answer!r}")
    if texts[1:] not in ([], [_right(record)[1]]):
        raise ValueError(f"field 'answer' may go on with the right option's letter alone, not {texts[1:]!r}")


def _task(name: str, summary: str, file: str, dataset: ChoiceDataset) -> Task:
    return Task(
        name=f"infinitebench-{name}",
        version=1,
        paper=PAPER,
        summary=summary,
        new_tokens=dataset.new_tokens,
        build=partial(build, dataset),
        score=dataset.score,
        data=DataFile(f"infinitebench/{file}.jsonl", FIELDS, SOURCE, check=_check),
    )


INFINITEBENCH_CHOICE = (
    _task("en-mc", "multiple choice on a book", "longbook_choice_eng", BOOK),
    _task("code-debug", "which of four functions has a planted error", "code_debug", DEBUG),
)
