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

from longspan_eval import runner
from longspan_eval.journal import Journal, read_samples
from longspan_eval.measure import measure, outcomes
from longspan_eval.pages import Pages
from longspan_eval.study import pace_of
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from longspan_eval.workers import Asker
from studies import DEEP, MADE, SUBJECT, answer, answers, study


class Stopped(Exception):
    pass


class Run:
    """What the command does, in this process."""

    def __init__(self, made, out, subject=SUBJECT, **more):
        self.study, self.out, self.subject = made, out, subject
        self.cells = made.plan(subject, **more)
        self.pages = Pages(out, made, subject, self.cells, "the command", "cpu", 1)
        self.console = Console(file=io.StringIO(), width=200)

    def __call__(self, ask_all=answers, retry_errors=False, **more):
        asked = []
        with Journal(self.out / "samples.jsonl") as journal:
            samples = journal.samples
            pace = pace_of(self.subject, self.cells, samples)
            parts = self.study.left(self.cells, samples, retry_errors=retry_errors, longest_first=False)

            def write():
                self.pages.write(outcomes(self.study, self.cells, journal.samples))

            try:
                measure(
                    self.study,
                    self.cells,
                    parts,
                    journal,
                    pace,
                    partial(ask_all, asked=asked, **more),
                    at_once=1,
                    console=self.console,
                    finished=write,
                )
            except Stopped:
                pass
            else:
                write()
        return asked

    @property
    def results(self):
        """What results.json says, but for times."""
        body = json.loads((self.out / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
        return body | {"cells": [{k: v for k, v in cell.items() if k != "seconds"} for cell in body["cells"]]}

    def mark(self, task, row, length):
        return outcomes(self.study, self.cells, read_samples(self.out / "samples.jsonl"))[task, row, length].mark


STUDY = study((MADE, DEEP), ("dca", "yarn"), samples=3, depths=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = Run(STUDY, tmp_path_factory.mktemp("whole"))
    assert len(run()) == 2 * 3 * 3 + 2 * 3 * 6
    return run


def test_a_run_is_asked_once(whole):
    before = (whole.out / "samples.jsonl").read_bytes()
    assert whole() == [] and (whole.out / "samples.jsonl").read_bytes() == before
    said = whole.console.file.getvalue()
    assert "54 prompts to ask" in said and "0 prompts to ask" in said and "deep yarn at 1,024: " in said


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), seconds=st.floats(0.1, 9))
def test_cut_off_at_any_byte_and_taken_up_it_ends_the_same(whole, tmp_path_factory, cut, seconds):
    data = (whole.out / "samples.jsonl").read_bytes()
    again = Run(STUDY, tmp_path_factory.mktemp("cut"))
    (again.out / "samples.jsonl").write_bytes(data[: round(cut * len(data))])
    kept = data[: round(cut * len(data))].count(b"\n")
    assert len(again(one=lambda ask: answer(ask, seconds))) == 54 - kept
    assert again.results == whole.results
    assert len((again.out / "samples.jsonl").read_bytes().splitlines()) == 54


def test_pages_are_there_before_the_end(tmp_path):
    def stops(parts, *, skip, asked):
        for n, pair in enumerate(answers(parts, skip=skip)):
            if n == 20:
                raise Stopped
            yield pair

    run = Run(STUDY, tmp_path)
    run(stops)
    cells = run.results["cells"]
    assert 0 < sum(cell["n"] == cell["planned"] for cell in cells) < len(cells)
    assert "cells are unfinished" in (tmp_path / "summary.md").read_text()


def test_out_of_memory_is_a_row_and_the_rest_goes_on(model, tokenizer, tmp_path, monkeypatch):
    made = study((TASKS["passkey"],), ("dca",), (200, 300, 400), samples=2)
    subject = Subject.of(model, tokenizer)
    read = runner.read

    def fails(model, tokenizer, ids, **more):
        if len(ids) == 292 and model.config._attn_implementation == "longspan":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return read(model, tokenizer, ids, **more)

    monkeypatch.setattr(runner, "read", fails)
    run = Run(made, tmp_path, subject)
    asked = run(one=Asker(model, tokenizer))
    assert len(asked) == 11, "one that failed, and not the next of its cell"
    marks = {(row, n): run.mark("passkey", row, n) for row in ("stock", "dca") for n in made.lengths}
    assert marks.pop(("dca", 300)) == "out of memory" and set(marks.values()) == {None}
    text = (tmp_path / "summary.md").read_text()
    assert "| out of memory |" in text and "- passkey, `dca` at 300 tokens: out of memory" in text
    assert run(one=Asker(model, tokenizer)) == []
    monkeypatch.undo()
    assert len(run(one=Asker(model, tokenizer), retry_errors=True)) == 2
    assert run.mark("passkey", "dca", 300) is None
    lengths = {s.length: s.tokens for s in read_samples(tmp_path / "samples.jsonl").values()}
    assert lengths == {200: 192, 300: 292, 400: 392}


def test_full_attention_over_its_time_is_marked_and_measured_when_there_is_more(tmp_path):
    made = study(rows=("dca", "esa"), lengths=(512, 1024, 2048), max_full_seconds=6.0)
    run = Run(made, tmp_path)
    asked = run()  # a prompt takes a second for each 100 tokens
    assert {(ask.row.label, ask.length) for ask in asked if ask.row.label == "stock"} == {("stock", 512)}
    assert [run.mark("made", "stock", n) for n in made.lengths] == [None, "skipped", "skipped"]
    assert all(run.mark("made", row, n) is None for row in ("dca", "esa") for n in made.lengths)
    assert "| skipped |" in (tmp_path / "summary.md").read_text() and run() == []
    more = Run(replace(made, max_full_seconds=15.0), tmp_path)
    assert {ask.length for ask in more()} == {1024}
    assert [more.mark("made", "stock", n) for n in made.lengths] == [None, None, "skipped"]


def test_a_first_prompt_over_its_time_ends_the_cell(tmp_path):
    run = Run(study(lengths=(1024,), max_full_seconds=6.0), tmp_path)
    assert [ask.row.label for ask in run()] == ["stock", "dca", "dca", "dca", "dca"]
    assert run.mark("made", "stock", 1024) == "skipped"
    assert run() == []
