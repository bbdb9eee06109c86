"""L-Eval's closed-ended tasks on documents (An et al., 2023): TOEFL, QuALITY, Coursera, SFiction.

Written from the paper and the published data alone. The wording of the prompts is our own, so figures are not quite the
paper's. A document that is too long loses its end. A statement of SFiction is asked about twice, as the published
figures have it: whether it is true in the story (loyalty), and, without the story, whether it is true (fact).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from longspan_eval import letters
from longspan_eval.datafile import DataFile, given
from longspan_eval.metrics import Score
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

PAPER = "An et al., 2023, arXiv 2307.11088"
SOURCE = "L4NLP/LEval on Hugging Face, folder LEval/Exam"
NEW_TOKENS = 32

_LETTER = "One option is right. Answer with its letter alone, such as B."
_LETTERS = "One or several options are right. Answer with their letters alone, such as B or ACD."
_VERDICT = "Answer True or False, by what the story says, even where the real world is otherwise."
_FACT = "Answer True or False, by the facts of the real world and not by any story."
# How the published questions of SFiction end; without the story it becomes the other.
_BY_STORY, _BY_FACTS = "based on the world described in the document", "based on the facts of the real world"


class Exam(NamedTuple):
    """A task: its title here, its file's name, a summary, how to answer, and how answers are scored."""

    title: str
    file: str
    summary: str
    rule: str
    score: Score


EXAMS = (
    Exam("toefl", "tpo", "multiple choice on lectures", _LETTER, letters.one_letter),
    Exam("quality", "quality", "multiple choice on stories and articles", _LETTER, letters.one_letter),
    Exam("coursera", "coursera", "multiple choice on courses; several options may be right", _LETTERS, letters.letters),
    Exam("sfiction", "sci_fi", "true or false in a story that bends the world's facts", _VERDICT, letters.verdict),
)


def build(
    rule: str, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """A document, a question on it, and how to answer; of a question about facts no document."""
    record = given(record, depth, "L-Eval")
    document, question = record["document"], f"Question: {record['question'].strip()}"
    if not document:
        question = question.replace(_BY_STORY, _BY_FACTS)
    ids = fit(
        tokenizer,
        "Read the following text; a question on it comes at the end.\n\n" if document else "",
        document,
        f"\n\n{question}\n\n{rule}\nAnswer:" if document else f"{question}\n\n{_FACT}\nAnswer:",
        length=length,
        new_tokens=NEW_TOKENS,
        cut="right",
        chat=True,
    )
    return Example(ids, (record["answer"],), seed, None, None)


def _right(answer: str) -> str | None:
    """The letters of an answer such as ``"B"``, ``"ACD"`` or ``"(B) The brass gear."``; None for any other."""
    found = re.match(r"\s*(?:\(([A-H])\)|([A-H]+)\s*(?:$|[.:)]))", answer)
    return None if found is None else found.group(1) or found.group(2)


def _check(verdicts: bool, record: Record) -> None:
    questions, answers = record["instructions"], record["outputs"]
    if not questions or len(questions) != len(answers):
        raise ValueError(
            f"fields 'instructions' and 'outputs' must hold one item a question, "
            f"not {len(questions)} and {len(answers)}"
        )
    for n, answer in enumerate(answers):
        if verdicts:
            if None in map(letters.read_verdict, answer.split("[fact:")):
                raise ValueError(f"field 'outputs[{n}]' must say True or False, not {answer!r}")
        elif _right(answer) is None:
            raise ValueError(
                f"field 'outputs[{n}]' must begin with letters, as 'B', 'ACD' or '(B) text', not {answer!r}"
            )


def _questions(records: list[Record], path: Path) -> list[Record]:
    """One record a question, of one a document; two if the answer has a fact, such as ``True [fact: False]``."""
    found: list[Record] = []
    for record in records:
        for question, answer in zip(record["instructions"], record["outputs"], strict=True):
            verdict, _, fact = answer.partition("[fact:")
            right = _right(answer) or verdict.strip()
            found.append({"document": record["input"], "question": question, "answer": right})
            if fact:
                found.append({"document": "", "question": question, "answer": fact.strip(" ]")})
    return found


LEVAL = tuple(
    Task(
        name=f"leval-{exam.title}",
        version=4 if exam.title == "sfiction" else 3,
        paper=PAPER,
        summary=exam.summary,
        new_tokens=NEW_TOKENS,
        build=partial(build, exam.rule),
        score=exam.score,
        data=DataFile(
            f"leval/{exam.file}.jsonl",
            {"input": str, "instructions": list[str], "outputs": list[str]},
            SOURCE,
            check=partial(_check, exam.score is letters.verdict),
            unpack=_questions,
        ),
    )
    for exam in EXAMS
)
