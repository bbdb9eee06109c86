"""Small studies, and answers to them without a model."""

from __future__ import annotations

import hashlib

from longspan_eval.datafile import DataFile
from longspan_eval.results import Sample
from longspan_eval.rows import parse_rows
from longspan_eval.study import Study
from longspan_eval.subject import Subject
from longspan_eval.task import Example, Task
from longspan_eval.workers import error_sample

SUBJECT = Subject(512, "a" * 64, "b" * 64, "tiny", "float32", 1000, crossover=1e9)


def build(tokenizer, *, length, seed, depth=None, record=None):
    if length < 20:
        raise ValueError(f"{length} tokens are too few: the task takes 20")
    references = ("x",) if record is None else (str(record["answer"]), "y")
    return Example([5] * (length - 4), references, seed, depth, 0.0)


def score(prediction, references):
    return float(prediction in references)


def task(name="made", **more):
    return Task(name, 1, "A paper", "a summary", 4, build, score, **more)


MADE, DEEP = task(), task("deep", at_depths=True)
READ = task("read", data=DataFile("read.jsonl", {"answer": (str, int)}))


def study(tasks=(MADE,), rows=("dca",), lengths=(512, 1024), **more):
    return Study(tuple(tasks), tuple(parse_rows(list(rows))), tuple(lengths), **{"samples": 4, **more})


def answer(ask, seconds=None):
    """A sample that the key decides, but for the seconds, which grow with the length."""
    luck = int(hashlib.sha256(f"{ask.row.label} {ask.length} {ask.seed} {ask.depth}".encode()).hexdigest(), 16) % 100
    took = ask.length / 100 if seconds is None else seconds
    depth = luck / 100 if ask.depth is None and ask.task.at_depths else ask.depth
    return Sample(
        ask.row.label, ask.length, ask.seed, depth, "x", "x", luck / 100, seconds=took, task=ask.task.name, tokens=9
    )


def answers(parts, *, skip, one=answer, asked=None):
    """As ``workers.run`` does, without a process or a model."""
    gone = set()
    for part in parts:
        for ask in part:
            if ask.cell in gone:
                continue
            reason = skip(ask)
            sample = one(ask) if reason is None else error_sample(ask, reason)
            if asked is not None and reason is None:
                asked.append(ask)
            if sample.error is not None:
                gone.add(ask.cell)
            yield ask, sample
