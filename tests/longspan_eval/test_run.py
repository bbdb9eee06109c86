"""A run: what was measured is never lost or asked again, whatever became of the process; failures are rows."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from longspan_eval import measure as measures
from longspan_eval.journal import Journal, read_samples
from longspan_eval.measure import Keys
from longspan_eval.run import in_process, measure
from longspan_eval.session import Session
from longspan_eval.studies.eval_report import EvalReport
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from support.studies import DEEP, MADE, SUBJECT, Answering, answer, plan_of, study


class Stopped(Exception):
    pass


class Run:
    """What the command does, in this process."""

    def __init__(self, made, out, subject=SUBJECT):
        self.out, self.subject, self.plan, self.rank = out, subject, plan_of(made, subject), made.rank()
        self.report = EvalReport(out, made, Keys(subject), self.plan, "the command", "cpu", 1)
        self.console = Console(file=io.StringIO(), width=200)

    def __call__(self, session=None, retry_errors=False):
        session = Answering() if session is None else session
        with Journal(self.out / "samples.jsonl") as journal:
            before = len(journal.samples)
            parts = self.plan.left(journal.samples, retry_errors=retry_errors, rank=self.rank)
            pace = self.plan.pace(self.subject, journal.samples)

            def write():
                self.report.write(journal.samples)

            try:
                measure(
                    self.plan,
                    parts,
                    journal,
                    pace,
                    partial(in_process, session=session),
                    console=self.console,
                    finished=write,
                )
            except Stopped:
                pass
            else:
                write()
            self.added = len(journal.samples) - before
        return getattr(session, "measured", [])

    @property
    def results(self):
        """What results.json says, but for times."""
        body = json.loads((self.out / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
        return body | {"cells": [{k: v for k, v in cell.items() if k != "seconds"} for cell in body["cells"]]}

    def mark(self, task, row, length):
        samples = read_samples(self.out / "samples.jsonl")
        places = [(cell.table, cell.row, cell.column) for cell in self.plan.cells]
        return self.plan.figure(places.index((task, row, f"{length:,}")), samples).mark


STUDY = study((MADE, DEEP), ("dca", "yarn"), samples=3, depths=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = Run(STUDY, tmp_path_factory.mktemp("whole"))
    assert len(run()) == 2 * 3 * 3 + 2 * 3 * 6
    return run


def test_a_run_is_measured_once(whole):
    before = (whole.out / "samples.jsonl").read_bytes()
    assert whole() == [] and (whole.out / "samples.jsonl").read_bytes() == before
    assert "deep, yarn, 1,024: " in whole.console.file.getvalue()


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), seconds=st.floats(0.1, 9))
def test_cut_off_at_any_byte_and_taken_up_it_ends_the_same(whole, tmp_path_factory, cut, seconds):
    data = (whole.out / "samples.jsonl").read_bytes()
    again = Run(STUDY, tmp_path_factory.mktemp("cut"))
    (again.out / "samples.jsonl").write_bytes(data[: round(cut * len(data))])
    kept = data[: round(cut * len(data))].count(b"\n")
    assert len(again(Answering(lambda prompt: answer(prompt, seconds)))) == 54 - kept
    assert again.results == whole.results
    assert len((again.out / "samples.jsonl").read_bytes().splitlines()) == 54


def test_the_report_is_there_before_the_end(tmp_path):
    left = iter(range(20))

    def stops(prompt):
        if next(left, None) is None:
            raise Stopped
        return answer(prompt)

    run = Run(STUDY, tmp_path)
    run(Answering(stops))
    cells = run.results["cells"]
    assert 0 < sum(cell["n"] == cell["planned"] for cell in cells) < len(cells)
    assert "cells are unfinished" in (tmp_path / "summary.md").read_text()


def test_out_of_memory_is_a_row_and_the_rest_goes_on(model, tokenizer, tmp_path, monkeypatch):
    made = study((TASKS["passkey"],), ("dca",), (200, 300, 400), samples=2)
    read = measures.read

    def fails(model, tokenizer, ids, **more):
        if len(ids) == 292 and model.config._attn_implementation == "longspan":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return read(model, tokenizer, ids, **more)

    monkeypatch.setattr(measures, "read", fails)
    run, session = Run(made, tmp_path, Subject.of(model, tokenizer)), Session(model, tokenizer)
    run(session)
    assert run.added == 11, "one that failed, and not the next of its cell"
    marks = {(row, n): run.mark("passkey", row, n) for row in ("stock", "dca") for n in made.lengths}
    assert marks.pop(("dca", 300)) == "out of memory" and set(marks.values()) == {None}
    text = (tmp_path / "summary.md").read_text()
    assert "| out of memory |" in text and "- passkey, `dca` at 300 tokens: out of memory" in text
    run(session)
    assert run.added == 0
    monkeypatch.undo()
    run(session, retry_errors=True)
    assert run.added == 1 and run.mark("passkey", "dca", 300) is None, "the failed one has the place of its error"
    lengths = {s.length: s.tokens for s in read_samples(tmp_path / "samples.jsonl").values()}
    assert lengths == {200: 192, 300: 292, 400: 392}


def places(measured):
    return {(prompt.spec.label, prompt.length) for prompt in measured}


def test_full_attention_over_its_time_is_marked_and_measured_when_there_is_more(tmp_path):
    made = study(specs=("dca", "esa"), lengths=(512, 1024, 2048), max_full_seconds=6.0)
    run = Run(made, tmp_path)
    measured = run()  # a prompt takes a second for each 100 tokens
    assert {place for place in places(measured) if place[0] == "stock"} == {("stock", 512)}
    assert [run.mark("made", "stock", n) for n in made.lengths] == [None, "skipped", "skipped"]
    assert all(run.mark("made", row, n) is None for row in ("dca", "esa") for n in made.lengths)
    assert "| skipped |" in (tmp_path / "summary.md").read_text() and run() == []
    more = Run(replace(made, max_full_seconds=15.0), tmp_path)
    assert places(more()) == {("stock", 1024)}
    assert [more.mark("made", "stock", n) for n in made.lengths] == [None, None, "skipped"]


def test_a_first_prompt_over_its_time_ends_the_cell(tmp_path):
    run = Run(study(lengths=(1024,), max_full_seconds=6.0), tmp_path)
    assert [prompt.spec.label for prompt in run()] == ["stock", "dca", "dca", "dca", "dca"]
    assert run.mark("made", "stock", 1024) == "skipped"
    assert run() == []


def test_after_the_deadline_nothing_is_begun():
    session = Answering()
    parts = plan_of(STUDY).left({})
    assert list(in_process(parts, session=session, deadline=0.0)) == session.measured == []
