"""LongBench's 16 English tasks (Bai et al., 2023) and the 13 of LongBench-E, from the files that its authors publish.

Prompts, answer lengths and rules are the official ones: a prompt that is too long loses its middle, there is no chat
template for few-shot and code tasks, and of trec, triviaqa and samsum only the first line is scored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from longspan_eval import metrics
from longspan_eval.datafile import DataFile, given
from longspan_eval.metrics import Score
from longspan_eval.prompt import fit
from longspan_eval.task import Example, Record, Task

PROMPTS = json.loads(Path(__file__).with_name("longbench_prompts.json").read_text(encoding="utf-8"))  # MIT licence
PAPER = "Bai et al., 2023, arXiv 2308.14508"
SOURCE = "data.zip of zai-org/LongBench on Hugging Face"
FIELDS = {"input": str, "context": str, "answers": list[str], "all_classes": (list[str], type(None)), "length": int}


@dataclass(frozen=True)
class LongBenchDataset:
    """LongBench's facts of a dataset.

    Attributes:
        new_tokens: the most tokens of an answer.
        in_e: whether LongBench-E has it.
        chat: whether a chat model gets its template.
        until: when an answer is complete whatever follows.
    """

    name: str
    summary: str
    new_tokens: int
    score: Score
    in_e: bool = True
    chat: bool = True
    until: Callable[[str], bool] | None = None


def first_line_complete(text: str) -> bool:
    """Whether the first line that is not empty has ended."""
    return "\n" in text.lstrip("\n")


def code_line_complete(text: str) -> bool:
    """Whether the line of code that is scored has ended."""
    return any(map(metrics.is_code, text.lstrip("\n").split("\n")[:-1]))


DATASETS = (
    LongBenchDataset("narrativeqa", "questions on a book or film script", 128, metrics.qa_f1, in_e=False),
    LongBenchDataset("qasper", "questions on a scientific article", 128, metrics.qa_f1),
    LongBenchDataset("multifieldqa_en", "questions on articles of many fields", 64, metrics.qa_f1),
    LongBenchDataset("hotpotqa", "questions that take two of many passages", 32, metrics.qa_f1),
    LongBenchDataset("2wikimqa", "questions that take several of many passages", 32, metrics.qa_f1),
    LongBenchDataset("musique", "questions of up to four steps over many passages", 32, metrics.qa_f1, in_e=False),
    LongBenchDataset("gov_report", "a summary of a government report", 512, metrics.rouge_l_by_sentence),
    LongBenchDataset(
        "qmsum", "a summary of what a meeting said on a query", 512, metrics.rouge_l_by_sentence, in_e=False
    ),
    LongBenchDataset("multi_news", "a summary of several news reports", 512, metrics.rouge_l_by_sentence),
    LongBenchDataset(
        "trec",
        "the type of a question, after many examples",
        64,
        partial(metrics.on_first_line, metrics.class_match),
        chat=False,
        until=first_line_complete,
    ),
    LongBenchDataset(
        "triviaqa",
        "trivia questions on a passage, after examples",
        32,
        partial(metrics.on_first_line, metrics.qa_f1),
        chat=False,
        until=first_line_complete,
    ),
    LongBenchDataset(
        "samsum",
        "a summary of a chat, after examples",
        128,
        partial(metrics.on_first_line, metrics.rouge_l_by_sentence),
        chat=False,
        until=first_line_complete,
    ),
    LongBenchDataset("passage_count", "how many different passages there are", 32, metrics.count),
    LongBenchDataset("passage_retrieval_en", "which of 30 passages an abstract is of", 32, metrics.retrieval),
    LongBenchDataset(
        "lcc", "the next line of a file of code", 64, metrics.edit_similarity, chat=False, until=code_line_complete
    ),
    LongBenchDataset(
        "repobench-p",
        "the next line of code, given other files",
        64,
        metrics.edit_similarity,
        chat=False,
        until=code_line_complete,
    ),
)
_BY_NAME = {dataset.name: dataset for dataset in DATASETS}


def build(
    name: str, tokenizer: Any, *, length: int, seed: int, depth: float | None = None, record: Record | None = None
) -> Example:
    """The official prompt of a record, with its middle cut out if it is too long."""
    record = given(record, depth, f"LongBench's {name}")
    dataset = _BY_NAME[name]
    before, after = PROMPTS[name].split("{context}")
    ids = fit(
        tokenizer,
        before,
        record["context"],
        after.replace("{input}", record["input"]),
        length=length,
        new_tokens=dataset.new_tokens,
        cut="middle",
        chat=dataset.chat,
    )
    classes = record["all_classes"] if name == "trec" else ()
    return Example(ids, (*record["answers"], *classes), seed, None, None)


def _check(name: str, record: Record) -> None:
    if not record["answers"]:
        raise ValueError("field 'answers' must hold at least one answer")
    if name == "trec":
        if len(record["answers"]) != 1 or record["answers"][0] not in (record["all_classes"] or ()):
            raise ValueError("field 'answers' must hold one answer, and 'all_classes' all of them, this one too")
    elif name == "passage_retrieval_en":
        for n, answer in enumerate(record["answers"]):
            if not re.search(r"Paragraph \d+", answer):
                raise ValueError(f"field 'answers[{n}]' must name a paragraph, such as 'Paragraph 7', not {answer!r}")


def _task(dataset: LongBenchDataset, *, e: bool) -> Task:
    title = dataset.name.replace("_", "-")
    return Task(
        name=f"longbench-e-{title}" if e else f"longbench-{title}",
        version=1,
        paper=PAPER,
        summary=f"{dataset.summary}; lengths spread evenly" if e else dataset.summary,
        new_tokens=dataset.new_tokens,
        build=partial(build, dataset.name),
        score=dataset.score,
        until=dataset.until,
        data=DataFile(
            f"longbench/{dataset.name}_e.jsonl" if e else f"longbench/{dataset.name}.jsonl",
            FIELDS,
            SOURCE,
            check=partial(_check, dataset.name),
        ),
    )


LONGBENCH = tuple(_task(dataset, e=False) for dataset in DATASETS)
LONGBENCH_E = tuple(_task(dataset, e=True) for dataset in DATASETS if dataset.in_e)
