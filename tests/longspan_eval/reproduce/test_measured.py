"""What tables measure: perplexity of documents, means, times, memory, rows that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from longspan_eval.cell import Cell
from longspan_eval.generate import decode, prefill
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import found
from longspan_eval.reproduce.cells import averaged, data_cells, grid, perplexity_cells
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.memory import PeakMemory
from longspan_eval.reproduce.texts import Corpus
from longspan_eval.schedule import CellPlan
from longspan_eval.spec import parse_spec, parse_specs
from longspan_eval.studies.eval import Evaluation
from longspan_eval.tasks import TASKS, passkey
from longspan_eval.windows import PERPLEXITY as TASK
from longspan_eval.windows import find_windows


def passkeys(count, length=300):
    return tuple(TaskPrompt(parse_spec("stock"), length, n, task=TASKS["passkey"]) for n in range(count))


BOOKS = Corpus("PG19", "perplexity/pg19", "somewhere")


def books(folder, *texts):
    """A corpus of these texts, a file each."""
    (folder / BOOKS.folder).mkdir(parents=True)
    for n, text in enumerate(texts):
        (folder / BOOKS.folder / f"{n}.txt").write_text(text)
    return folder


@pytest.mark.parametrize("mode", ["new", "whole"])
@pytest.mark.parametrize("samples", [3, None])
def test_perplexity_is_that_of_the_eval_task(session, tmp_path, mode, samples):
    session.data_dir = books(tmp_path, "It was a dark night and the sea was calm, and nobody knew. " * 60)
    lengths, specs = (64, 200), parse_specs(["stock", "streaming-llm:recent=24"])
    cells = perplexity_cells(
        session, {spec.label: spec for spec in specs}, (BOOKS,), lengths, stride=32, mode=mode, windows=samples
    )
    ours = {
        (cell.row.partition(": ")[2], cell.column): cell.figure_of([session.measure(one) for one in cell.measures])
        for cell in cells
    }
    windows = find_windows(session.tokenizer, [tmp_path / BOOKS.folder], longest=200, stride=32, mode=mode)
    study = Evaluation((TASK,), tuple(specs), lengths, samples=samples or 10**6, windows=windows)
    told = {
        (cell.row, session.in_windows(int(cell.column))): cell.figure_of(map(session.measure, cell.measures))
        for cell in study.cells()
    }
    assert told.keys() == ours.keys() and len(told) == 4
    for place, figure in told.items():
        assert ours[place].value == pytest.approx(figure.value) and ours[place].n == figure.n
    assert told["stock", session.in_windows(64)].n == (samples or len(windows.records)) > 2
    plan = CellPlan(study.cells(), session.keys)
    assert {key for keys in CellPlan(cells, session.keys).keys for key in keys} == {
        k for keys in plan.keys for k in keys
    }


def test_no_window_runs_over_the_end_of_a_document(session, tmp_path):
    texts = [f"{word} night and the sea was calm. " * 40 for word in ("Dark", "Bright", "Short")]
    session.data_dir = books(tmp_path, *texts[:2], texts[2][:100])
    (cell,) = perplexity_cells(session, {"a": parse_spec("stock")}, (BOOKS,), [64], stride=32, mode="new", windows=None)
    assert cell.row == "PG19, 2 of 3 documents: a" and len(cell.measures) > 8
    for one in cell.measures:
        said = session.tokenizer.decode(TASK.build(session.tokenizer, length=64, seed=0, record=one.record).input_ids)
        assert ("Dark" in said) is not ("Bright" in said)
    limited = replace(BOOKS, documents=1)
    (cell,) = perplexity_cells(session, {"a": parse_spec("stock")}, (limited,), [64], stride=32, mode="new", windows=2)
    assert cell.row == "PG19, 1 of 3 documents: a" and len(cell.measures) == 2


def test_the_first_documents_are_those_that_are_long_enough(session, tmp_path):
    long = "{0} night and the sea was calm. " * 40
    session.data_dir = books(tmp_path, "Short.", long.format("Dark"), "Too short.", long.format("Bright"), long + "!")
    first = replace(BOOKS, documents=2)
    (cell,) = perplexity_cells(session, {"a": parse_spec("stock")}, (first,), [64], stride=32, mode="new", windows=None)
    assert cell.row == "PG19, 2 of 5 documents: a"
    assert len({one.record["text"] for one in cell.measures}) == 2


def test_a_text_that_is_too_short_says_so(session, tmp_path):
    session.data_dir = books(tmp_path, "Short.")
    (cell,) = perplexity_cells(session, {"a": parse_spec("stock")}, (BOOKS,), [64], stride=8, mode="new", windows=2)
    assert "too few for a window of 64" in cell.missing


def test_means_are_of_tasks_and_lengths_however_many_prompts_each_has(session):
    cells = [
        Cell("a", "many", found, passkeys(6)),
        Cell("a", "few", found, passkeys(2, length=350)),
        Cell("a", "none", missing="too long"),
    ]
    *_, mean = averaged(cells)
    assert mean.column == "mean of 2 of 3"
    samples = [one.sample(correct=float(one.length == 350)) for one in mean.measures]
    figure = mean.figure_of(samples)
    assert figure.value == 0.5 and figure.n == 8 and figure.interval[0] <= 0.5 <= figure.interval[1]


@pytest.mark.parametrize("implementation", ["eager", "sdpa", None])
def test_timed(session, implementation):
    session.model.generation_config.eos_token_id = None
    before = session.model.config._attn_implementation
    row = parse_spec("stock" if implementation else "dca")
    sample = session.measure(Timed(row, 300, 0, tokens=4 * (implementation is None), implementation=implementation))
    assert sample.error is None and sample.figures["prefill"] > 0 and sample.figures["memory"] >= 0
    assert ("token" in sample.figures) is (implementation is None)
    if implementation is not None:
        assert session.model.config._attn_implementation == implementation
    session.detach()
    assert session.model.config._attn_implementation == before


class Clock:
    """A second for each forward pass of a model, and none for anything else."""

    def __init__(self, model):
        self.passes = 0
        self.now = lambda: float(self.passes)
        model.register_forward_hook(self)

    def __call__(self, *args):
        self.passes += 1


def test_seconds_a_token_are_of_as_many_tokens_as_the_table_says(session, monkeypatch):
    ids = passkey.build(session.tokenizer, length=300, seed=0, answer_room=passkey.ANSWER_ROOM).input_ids
    with torch.inference_mode():
        answer = list(decode(session.model, *prefill(session.model, torch.tensor([ids]), 1), 6, past_end=True))
    clock = Clock(session.model)
    monkeypatch.setattr("longspan_eval.reproduce.measures.time.perf_counter", clock.now)
    for end, count in ((None, 6), (answer[2], answer.index(answer[2]))):
        session.model.generation_config.eos_token_id = end
        sample = session.measure(Timed(parse_spec("stock"), 300, 0, tokens=6))
        assert sample.error is None and sample.figures["token"] == 1.0, "a pass a token, past the answer's end too"
        assert sample.prediction == session.tokenizer.decode(answer[:count], skip_special_tokens=True)


def test_memory_is_what_the_work_takes():
    with PeakMemory(torch.device("cpu")) as peak:
        held = torch.ones(40_000_000)
        del held
    if math.isnan(peak.bytes):
        pytest.skip("nobody counts resident memory here")
    assert 155e6 < peak.bytes < 240e6


def test_rows_that_do_not_fit_the_window_say_why(session):
    (cell,) = grid(session, {"big": parse_spec("dca:chunk_size=9999")}, "passkey", [300], 1)
    assert "chunk_size + local_window" in cell.missing


def test_data_rows_name_their_file(session):
    cells = data_cells(session, {"stock": parse_spec("stock")}, ["leval-toefl"], [512], 3)
    assert [(cell.row, cell.brief) for cell in cells] == [("leval-toefl", "needs `leval/tpo.jsonl`")]
    assert "--data-dir" in cells[0].missing and "L4NLP" in cells[0].missing
