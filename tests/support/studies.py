"""Small evaluations, and samples of them without a model."""

from __future__ import annotations

import hashlib

from longspan_eval.datafile import DataFile
from longspan_eval.measure import Keys
from longspan_eval.schedule import CellPlan
from longspan_eval.spec import parse_specs
from longspan_eval.studies.eval import Evaluation
from longspan_eval.studies.eval_report import EvalReport
from longspan_eval.subject import Subject
from longspan_eval.task import Example, Task

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


def study(tasks=(MADE,), specs=("dca",), lengths=(512, 1024), **more):
    return Evaluation(tuple(tasks), tuple(parse_specs(list(specs))), tuple(lengths), **{"samples": 4, **more})


def plan_of(made, subject=SUBJECT, device="cpu"):
    return CellPlan(made.cells(), Keys(subject, device), max_full_seconds=made.max_full_seconds)


def report_of(made, out, command="longspan eval"):
    return EvalReport(out, made, Keys(SUBJECT), plan_of(made), command, "cpu", 2)


def requests(plan, table=None):
    """What a plan measures, by row and column."""
    found = {}
    for request in (request for part in plan.left({}) for request in part):
        cell = plan.cells[request.cell]
        if table in (None, cell.table):
            found.setdefault((cell.row, cell.column), []).append(request)
    return found


def answer(prompt, seconds=None):
    """A sample that the prompt decides, but for the seconds, which grow with the length."""
    said = f"{prompt.spec.label} {prompt.length} {prompt.seed} {prompt.depth}"
    luck = int(hashlib.sha256(said.encode()).hexdigest(), 16) % 100
    took = prompt.length / 100 if seconds is None else seconds
    depth = luck / 100 if prompt.depth is None and prompt.task.at_depths else prompt.depth
    return prompt.sample(depth=depth, answer="x", prediction="x", correct=luck / 100, seconds=took, tokens=9)


class Answering:
    """A session without a model.

    Attributes:
        measured: what it was given.
    """

    def __init__(self, one=answer):
        self._one, self.measured = one, []

    def measure(self, measure):
        self.measured.append(measure)
        return self._one(measure)

    def detach(self):
        pass
