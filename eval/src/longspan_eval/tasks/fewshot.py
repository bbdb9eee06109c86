"""Questions on a long document after a few examples, for base models: NarrativeQA, Qasper, QuALITY and QMSum.

The protocol of dual chunk attention (An et al., 2024): the document, then examples without their documents, then the
question; what is too long is cut from the left, so the document loses its beginning. Examples come from the training
file, at random, or those whose questions match the question best or worst by BM25 (its Table 5). Files are as SCROLLS
publishes them: ``input`` is the question, a blank line, and the document.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from longspan_eval import metrics
from longspan_eval.bm25 import BM25
from longspan_eval.datafile import DataFile, FileRef, given, read_file
from longspan_eval.errors import DataError
from longspan_eval.metrics import Score
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

PAPER = "An et al., 2024, arXiv 2402.17463"
SOURCE = "scrolls-benchmark.com; train.jsonl beside it has the examples"
FIELDS = {"id": str, "input": str, "output": str}
NEXT = "Question:"

Choice = Literal["random", "best", "worst"]


class FewShotDataset(NamedTuple):
    """A dataset: its name here, its file's, how many examples come first, the most tokens of an answer, its score."""

    title: str
    file: str
    shots: int
    new_tokens: int
    score: Score


DATASETS = (
    FewShotDataset("narrativeqa", "narrative_qa", 0, 64, metrics.qa_f1),
    FewShotDataset("qasper", "qasper", 2, 64, metrics.qa_f1),
    FewShotDataset("quality", "quality", 2, 64, metrics.exact_match),
    FewShotDataset("qmsum", "qmsum", 1, 128, metrics.rouge_geometric_mean),
)
_CHOSEN = {
    "random": "at random",
    "best": "whose questions match best by BM25",
    "worst": "whose questions match worst by BM25",
}


def build(
    dataset: FewShotDataset,
    choice: Choice,
    tokenizer: Any,
    *,
    length: int,
    seed: int,
    depth: float | None = None,
    record: Record | None = None,
) -> Example:
    """A document, examples, and a question; ``seed`` draws the examples if they are random."""
    record = given(record, depth, f"few-shot {dataset.title}")
    examples = _choose(dataset, choice, record, random.Random(seed))
    asked = "".join(f"\n\nQuestion: {question} \nAnswer:{answer}" for question, answer in examples)
    ids = fit(
        tokenizer,
        "",
        record["document"],
        f"{asked}\n\nQuestion: {record['question']} \nAnswer:",
        length=length,
        new_tokens=dataset.new_tokens,
        cut="left",
        chat=False,
    )
    return Example(ids, tuple(record["answers"]), seed, None, None)


def next_question(text: str) -> bool:
    """Whether an answer has ended because the model asks a question of its own."""
    return any(part.strip() for part in text.split(NEXT)[:-1])


def _choose(dataset: FewShotDataset, choice: Choice, record: Record, rng: random.Random) -> list[tuple[str, str]]:
    if not dataset.shots:
        return []
    pool, index = _pool(record["training"])
    if choice == "random":
        return rng.sample(pool, dataset.shots)
    ranked = index.ranked(record["question"])
    # The best (or worst) example stands next to the question.
    chosen = ranked[: dataset.shots][::-1] if choice == "best" else ranked[-dataset.shots :]
    return [pool[n] for n in chosen]


@lru_cache(maxsize=4)
def _pool(training: FileRef) -> tuple[list[tuple[str, str]], BM25]:
    """Questions and answers of a training file, and the questions' index."""
    pool: dict[str, tuple[str, str]] = {}
    for line in training.read().decode("utf-8-sig").split("\n"):
        if line.strip():
            record = json.loads(line)
            pool.setdefault(record["id"], (_parts(record)[0], record["output"].strip()))
    examples = list(pool.values())
    return examples, BM25([question for question, _ in examples])


def _parts(record: Record) -> tuple[str, str]:
    """Question, with its options if it has some, and document."""
    question, _, rest = record["input"].partition("\n\n")
    head, last, tail = rest.partition("(D)")
    # QuALITY's four options come next; they belong to the question, up to the blank line after the last.
    if last and head.lstrip().startswith("(A)"):
        option, _, rest = tail.partition("\n\n")
        question = f"{question}\n{head.strip()}\n(D) {option.strip()}"
    return question.strip(), rest.strip()


def _check(record: Record) -> None:
    if not all(_parts(record)):
        raise ValueError("field 'input' must be a question, a blank line, and a document")
    if not record["output"].strip():
        raise ValueError("field 'output' must hold an answer")


def _unpack(dataset: FewShotDataset, records: list[Record], path: Path) -> list[Record]:
    """One record a question, with all its answers: SCROLLS has a line for each of them."""
    merged: dict[str, dict[str, Any]] = {}
    training = {}
    if dataset.shots:
        # Read for what may be wrong with it alone: no prompt is to find that out in the middle of a run.
        file = DataFile(f"scrolls/{dataset.file}/train.jsonl", FIELDS, SOURCE, check=_check)
        examples = read_file(file, path.parents[2])
        held = len({record["id"] for record in examples})
        if held < dataset.shots:
            raise DataError(
                f"{path.with_name('train.jsonl')}: {dataset.shots} examples are needed, and it holds {held}"
            )
        shared = {record["input"] for record in examples} & {record["input"] for record in records}
        if shared:
            raise DataError(
                f"{path.with_name('train.jsonl')}: {len(shared):,} of its questions are in {path.name}, too, and would "
                "be examples of themselves, with the answer; put the examples of the dataset's authors there"
            )
        training = {"training": FileRef.to(path.with_name("train.jsonl"))}
    for record in records:
        question, document = _parts(record)
        entry = merged.setdefault(record["id"], {"document": document, "question": question, "answers": [], **training})
        entry["answers"].append(record["output"])
    return list(merged.values())


def _task(dataset: FewShotDataset, choice: Choice) -> Task:
    examples = f"{dataset.shots} example{'s' if dataset.shots > 1 else ''} {_CHOSEN[choice]}"
    return Task(
        name=f"fewshot-{dataset.title}" + ("" if choice == "random" else f"-{choice}"),
        version=1,
        paper=PAPER,
        summary=f"{dataset.title}, " + (examples if dataset.shots else "no example"),
        new_tokens=dataset.new_tokens,
        build=partial(build, dataset, choice),
        score=partial(metrics.before_next, NEXT, dataset.score),
        until=next_question,
        data=DataFile(
            f"scrolls/{dataset.file}/validation.jsonl", FIELDS, SOURCE, check=_check, unpack=partial(_unpack, dataset)
        ),
    )


_CHOICES: tuple[Choice, ...] = ("random", "best", "worst")
FEWSHOT = tuple(_task(dataset, choice) for dataset in DATASETS for choice in _CHOICES[: 3 if dataset.shots else 1])
