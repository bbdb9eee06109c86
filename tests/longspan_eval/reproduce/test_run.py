"""Every table runs; a run that was killed gives the same as one that was not; what is missing is named."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from longspan.errors import DataError, LongspanError
from longspan.hf.attach import attachment_of
from longspan_eval.datafile import SAMPLES
from longspan_eval.journal import Journal
from longspan_eval.outcome import outcome
from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.figures import FOUND, mean_of
from longspan_eval.reproduce.lab import Lab
from longspan_eval.reproduce.measures import Asked, Looked, Timed
from longspan_eval.reproduce.memory import Peak
from longspan_eval.reproduce.pages import Pages
from longspan_eval.reproduce.parts import INSIDE, data_cells, grid, perplexity_cells
from longspan_eval.reproduce.published import published
from longspan_eval.reproduce.run import Plan, run, select
from longspan_eval.reproduce.table import Cell, Paper, Table, order
from longspan_eval.reproduce.texts import PG19
from longspan_eval.results import Sample
from longspan_eval.rows import parse_row, parse_rows
from longspan_eval.study import Study, spread
from longspan_eval.tasks import TASKS
from longspan_eval.windows import PERPLEXITY as TASK
from longspan_eval.windows import find_windows
from longspan_eval.workers import Asker

EVERY = [(paper, table.name) for paper, made in PAPERS.items() for table in made.tables]
READS = {  # tables that have nothing without data, and a file of each
    ("longheads", "longbench"): "longbench/narrativeqa.jsonl",
    ("longheads", "analysis-reports"): "longbench/gov_report.jsonl",
    ("dca", "few-shot"): "scrolls/narrative_qa/validation.jsonl",
    ("dca", "examples"): "scrolls/qasper/validation.jsonl",
    ("dca", "zero-shot"): "leval/tpo.jsonl",
    ("dca", "unseen"): "unseen/questions.jsonl",
    ("esa", "longbench"): "longbench/narrativeqa.jsonl",
    ("esa", "infinitebench"): "infinitebench/code_debug.jsonl",
}


def quietly(plans, lab, path, **more):
    with Journal(path) as journal:
        whole = run(plans, lab, journal, console=Console(file=io.StringIO()), finished=lambda: None, **more)
        return whole, dict(journal.samples)


def plan_of(paper, name, lab):
    return Plan(select(PAPERS[paper], [name])[0], lab)


def few(table, lab):
    """A plan of a table with the corners of what is measured, and all that takes no measuring."""
    cells = table.cells(lab)
    rows = list(dict.fromkeys(cell.row for cell in cells if cell.measures))
    columns = list(dict.fromkeys(cell.column for cell in cells if cell.measures))
    edges = {*rows[:1], *rows[-1:]}, {*columns[:1], *columns[-1:]}
    kept = [cell for cell in cells if not cell.measures or (cell.row in edges[0] and cell.column in edges[1])]
    return Plan(replace(table, cells=lambda _: kept), lab)


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_every_table_runs(paper, name, lab, tmp_path):
    if name == "passkey-far":
        lab.max_length = 16 * lab.subject.window
    plan = few(select(PAPERS[paper], [name])[0], lab)
    whole, samples = quietly([plan], lab, tmp_path / "samples.jsonl")
    assert whole and attachment_of(lab.model) is None
    outcomes = plan.outcomes(samples)
    wrong = [one.reason for one in outcomes if one.cell.missing is None and one.reason is not None]
    assert not wrong
    with_figures = [one for one in outcomes if one.figure is not None]
    assert all(one.planned == 0 for one in with_figures)
    if (paper, name) in READS:
        assert not with_figures
        assert any(READS[paper, name] in one.text and "--data-dir" in one.reason for one in outcomes)
    elif (paper, name) == ("esa", "recall"):
        assert "a calibration" in outcomes[0].text and "longspan calibrate" in outcomes[0].reason
    else:
        assert len(with_figures) >= (1 if name == "passkey-far" else 2)
    pages = Pages(tmp_path, PAPERS[paper], lab, [plan], "longspan reproduce", "cpu")
    text = pages.write(samples)
    assert text == (tmp_path / "summary.md").read_text() and "/" + "work" not in text
    assert (
        plan.table.where in text
        and ("not at hand: see" in text) is not plan.table.whole
        and PAPERS[paper].hardware in text
    )
    body = json.loads((tmp_path / "results.json").read_text())["tables"][name]
    assert len(body["cells"]) == len(outcomes) and len(body["published"]) == len(published(paper, name))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_planned_at_the_papers_scale(paper, at_window):
    lab = at_window(128, scale="paper", samples=2, max_length=1024)
    for table in PAPERS[paper].tables:
        plan = Plan(table, lab)
        assert plan.cells and len(plan.protocol) > 40
        assert all(one.text in ("·", "n/a", "-") or one.figure or "needs" in one.text for one in plan.outcomes({}))


@pytest.mark.parametrize(("paper", "name"), [*sorted(READS.keys() - {("esa", "longbench")}), ("dca", "perplexity")])
def test_with_data(paper, name, lab, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(SAMPLES, data)
    (data / "perplexity").mkdir()
    (data / "perplexity" / "pg19.txt").write_text("It was a dark night and the sea was calm. " * 150)
    lab.data_dir, lab.max_length = data, None
    table = select(PAPERS[paper], [name])[0]
    plan = Plan(table, lab)
    # One of each kind of cell is enough: the tasks are tested by themselves.
    measured = [n for n, cell in enumerate(plan.cells) if cell.measures][:3]
    assert measured
    for n in measured:
        for key, measure, _ in [step for step in plan.steps if step[2] == n][:1]:
            sample = lab.measure(measure)
            assert sample.error is None, sample.error
            assert key == lab.key(measure)
    lab.detach()
    if name == "perplexity":
        assert plan.cells[0].row == "PG19: stock"


def test_a_broken_file_is_an_error_before_anything_is_measured(lab, tmp_path):
    (tmp_path / "leval").mkdir()
    (tmp_path / "leval" / "tpo.jsonl").write_text('{"input": 1}\n')
    lab.data_dir = tmp_path
    with pytest.raises(DataError, match=r"tpo\.jsonl, line 1"):
        plan_of("dca", "zero-shot", lab)


def test_questions_without_a_paper(lab, tmp_path):
    (tmp_path / "unseen").mkdir()
    shutil.copy(SAMPLES / "unseen" / "questions.jsonl", tmp_path / "unseen")
    lab.data_dir = tmp_path
    with pytest.raises(DataError, match=r"paper\.txt: there is no text"):
        plan_of("dca", "unseen", lab)


class Killed(BaseException):
    """What a signal is to the code that it ends."""


def test_a_kill_and_resume_give_the_same(lab, tmp_path, monkeypatch, after=5):
    def without_times(samples):  # losses as the journal keeps them
        return {k: (one.prediction, one.correct, f"{one.loss:.6f}", one.error) for k, one in samples.items()}

    lab.max_length = 2 * lab.subject.window
    plans = [few(select(PAPERS["longheads"], [name])[0], lab) for name in ("perplexity", "passkey", "split")]
    _, straight = quietly(plans, lab, tmp_path / "straight.jsonl")
    measure, done = Lab.measure, []

    def dies(self, one):
        if len(done) == after:
            raise Killed
        done.append(one)
        return measure(self, one)

    monkeypatch.setattr(Lab, "measure", dies)
    with pytest.raises(Killed):
        quietly(plans, lab, tmp_path / "killed.jsonl")
    assert attachment_of(lab.model) is None
    monkeypatch.setattr(Lab, "measure", measure)
    with (tmp_path / "killed.jsonl").open("ab") as file:
        file.write(b'{"key": "torn')
    _, resumed = quietly(plans, lab, tmp_path / "killed.jsonl")
    assert len(resumed) > after and without_times(resumed) == without_times(straight)
    for plan in plans:
        told = [[one.text for one in plan.outcomes(samples)] for samples in (straight, resumed)]
        assert told[0] == told[1]
    assert not any(plan.left(resumed) for plan in plans)


def test_a_deadline_begins_nothing_new(lab, tmp_path):
    plan = plan_of("longheads", "passkey", lab)
    whole, samples = quietly([plan], lab, tmp_path / "samples.jsonl", deadline=0.0)
    assert not whole and not samples
    assert {one.text for one in plan.outcomes(samples)} == {"·", "n/a"}


def test_full_attention_that_takes_too_long_is_marked(lab, tmp_path, monkeypatch):
    # Stock takes a second at 300 tokens; what it takes at 600 is known from that, also when a run is taken up again.
    measured = []

    def takes(self, one):
        measured.append((one.row.label, one.length))
        return Sample(one.row.label, one.length, one.seed, None, "", seconds=one.length / 300, tokens=one.length)

    monkeypatch.setattr(Lab, "measure", takes)
    cells = [
        Cell(row, f"{length}", FOUND, passkeys(3, row, length)) for row in ("stock", "dca") for length in (300, 600)
    ]
    plan = Plan(table_of(cells), lab)
    quietly([Plan(table_of(cells[:1]), lab)], lab, tmp_path / "s.jsonl")
    _, samples = quietly([plan], lab, tmp_path / "s.jsonl", max_full_seconds=1.5)
    assert [one.text.split(" ")[0] for one in plan.outcomes(samples)] == ["0%", "skipped", "0%", "0%"]
    assert "about 2" in (said := plan.outcomes(samples)[1].reason) and said.endswith("--max-full-seconds 1.5")
    assert ("stock", 600) not in measured and measured.count(("dca", 600)) == 3


def table_of(cells, **more):
    return Table("made", "Made", "Table 0", lambda lab: "a protocol", lambda lab: cells, **more)


def passkeys(count, row="stock", length=300):
    return tuple(Asked(parse_row(row), TASKS["passkey"], length, n) for n in range(count))


def test_an_error_ends_its_cell_and_no_other(lab, tmp_path):
    cells = [Cell("bad", "x", FOUND, passkeys(3, length=20)), Cell("good", "x", FOUND, passkeys(2))]
    plan = Plan(table_of(cells), lab)
    _, samples = quietly([plan], lab, tmp_path / "samples.jsonl")
    bad, good = plan.outcomes(samples)
    assert bad.text == "error" and "20 tokens are too few" in bad.reason and good.figure.n == 2
    assert len(samples) == 3 and not plan.left(samples)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_is_a_figure(lab, tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr("longspan_eval.reproduce.measures.run_example", fails)
    plan = Plan(table_of([Cell("a", "x", FOUND, passkeys(2))]), lab)
    _, samples = quietly([plan], lab, tmp_path / "samples.jsonl")
    assert plan.outcomes(samples)[0].text == "out of memory"


def test_a_mistake_says_where(lab, monkeypatch):
    monkeypatch.setattr("longspan_eval.reproduce.measures.run_example", lambda *_: 1 // 0)
    assert "ZeroDivisionError" in (error := lab.measure(passkeys(1)[0]).error) and "test_run.py" in error


def test_cells_that_share_measures_measure_once(lab, tmp_path):
    looks = (Looked(parse_row("longheads"), 400, 0, TASKS["passkey-prose"]),)
    cells = [Cell("a", "cover", mean_of("cover", "share"), looks), Cell("a", "Gini", mean_of("gini", "number"), looks)]
    plan = Plan(table_of(cells), lab)
    _, samples = quietly([plan], lab, tmp_path / "samples.jsonl")
    assert len(samples) == 1 and all(one.figure.n == 1 for one in plan.outcomes(samples))
    (one,) = samples.values()
    assert 0 < one.figures["cover"] <= 1 and one.figures["split"] in (0.0, 1.0)


@pytest.mark.parametrize(
    ("paper", "name"),
    [
        (paper, table.name)
        for paper, made in PAPERS.items()
        for table in made.tables
        if table.name not in ("matrix", "recall", "operations", "analysis-reports")  # where nothing is compared with it
    ],
)
def test_stock_is_in_every_table_that_compares(paper, name, lab, tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    lab.data_dir, lab.samples, lab.max_length = tmp_path / "data", 2, None
    cells = [cell for cell in plan_of(paper, name, lab).cells if cell.measures]
    rows = {measure.row.label for cell in cells for measure in cell.measures}
    assert "stock" in rows and len(rows) > 1
    for cell in cells:  # it is what it is called
        only = {measure.row.label for measure in cell.measures}
        if any(part.startswith("stock") for part in (cell.row, cell.column, cell.row.partition(": ")[2])):
            assert only == {"stock"}


@pytest.mark.parametrize(("paper", "name"), [("longheads", "ablations"), ("esa", "proximity")])
def test_what_the_model_can_do_at_all_stands_beside_ablations(paper, name, lab):
    inside = [cell for cell in plan_of(paper, name, lab).cells if cell.row == INSIDE and cell.measures]
    assert inside and {measure.length for cell in inside for measure in cell.measures} == {lab.subject.window}


def test_stock_answers_the_prompts_that_are_looked_at(lab):
    lab.samples = 8
    cells = {(cell.row, cell.column): cell for cell in plan_of("longheads", "split", lab).cells}
    stock, own = (cells[row, "split over chunks"].measures for row in ("stock", "LongHeads"))
    assert [(one.seed, one.length) for one in stock] == [(one.seed, one.length) for one in own]
    pairs = [(cut, look) for cut, look in zip(stock, own, strict=True) if cut.length == 256]
    assert len(pairs) == 8
    told = [[lab.measure(one).figures["split"] for one in pair] for pair in pairs]
    assert all(a == b for a, b in told) and len({a for a, _ in told}) == 2


def test_two_cells_in_one_place_are_a_mistake(lab):
    with pytest.raises(RuntimeError, match="one place"):
        Plan(table_of([Cell("a", "x", FOUND), Cell("a", "x", FOUND)]), lab)


def test_order_says_something_of_every_cell_first():
    cells = [Cell("a", "x", FOUND, passkeys(12)), Cell("b", "x", FOUND, passkeys(2))]
    assert [n for n, _ in order(cells)] == [0, 1, *[0] * 9, 1, 0, 0]
    assert [n for n, _ in order(cells, interleaved=True)] == [0, 1, 0, 1, *[0] * 10]
    assert [measure for _, measure in order(cells)].count(passkeys(12)[11]) == 1
    assert order([]) == []


def test_tables_are_selected_by_name():
    paper = PAPERS["longheads"]
    assert [table.name for table in select(paper, ["split", "passkey"])] == ["passkey", "split"]
    assert select(paper, None) == paper.tables
    with pytest.raises(LongspanError, match="no table 'nine'; it has perplexity"):
        select(paper, ["nine"])
    with pytest.raises(LongspanError, match="passkey is named twice"):
        select(paper, ["passkey", "passkey"])


def test_names_are_told_apart():
    for paper in PAPERS.values():
        assert isinstance(paper, Paper) and len({table.name for table in paper.tables}) == len(paper.tables)


# What is measured


@pytest.mark.parametrize("mode", ["new", "whole"])
@pytest.mark.parametrize("samples", [3, None])
def test_perplexity_is_that_of_the_eval_task(lab, tmp_path, mode, samples):
    (tmp_path / "perplexity").mkdir()
    path = tmp_path / PG19.file
    path.write_text("It was a dark night and the sea was calm, and nobody knew. " * 60)
    lab.data_dir, lengths, rows = tmp_path, (64, 200), parse_rows(["stock", "streaming-llm:recent=24"])
    made = {row.label: row for row in rows}
    cells = perplexity_cells(lab, made, (PG19,), lengths, stride=32, mode=mode, windows=samples)
    found = {
        (cell.row.partition(": ")[2], cell.column): cell.show.reduce([lab.measure(one) for one in cell.measures])
        for cell in cells
    }
    windows = find_windows(lab.tokenizer, [path], longest=200, stride=32, mode=mode)
    study = Study((TASK,), tuple(rows), lengths, samples=samples or 10**6, windows=windows)
    ask = Asker(lab.model, lab.tokenizer)
    told = [outcome(cell, {one.key: ask(one) for one in cell.asks}) for cell in study.plan(lab.subject)]
    assert len(told) == len(found) == 4
    for one in told:
        figure = found[one.row, f"{one.length:,}"]
        assert (figure.value, figure.n, figure.interval) == (one.score, one.n, one.interval)
    assert told[0].n == (samples or len(windows.records)) > 2 and len({one.score for one in told}) == 4


def test_a_text_that_is_too_short_says_so(lab, tmp_path):
    (tmp_path / "perplexity").mkdir()
    (tmp_path / "perplexity" / "pg19.txt").write_text("Short.")
    lab.data_dir = tmp_path
    (cell,) = perplexity_cells(lab, {"a": parse_row("stock")}, (PG19,), [64], stride=8, mode="new", windows=2)
    assert "too few for a window of 64" in cell.missing


@pytest.mark.parametrize("implementation", ["eager", "sdpa", None])
def test_timed(lab, implementation):
    lab.model.generation_config.eos_token_id = None
    before = lab.model.config._attn_implementation
    row = parse_row("stock" if implementation else "dca")
    sample = lab.measure(Timed(row, 300, 0, answers=implementation is None, implementation=implementation))
    assert sample.error is None and sample.figures["prefill"] > 0 and sample.figures["memory"] >= 0
    assert ("token" in sample.figures) is (implementation is None)
    if implementation is not None:
        assert lab.model.config._attn_implementation == implementation
    lab.detach()
    assert lab.model.config._attn_implementation == before


def test_memory_is_what_the_work_takes():
    with Peak(torch.device("cpu")) as peak:
        held = torch.ones(40_000_000)
        del held
    if math.isnan(peak.bytes):
        pytest.skip("nobody counts resident memory here")
    assert 155e6 < peak.bytes < 240e6


def test_rows_that_do_not_fit_the_window_say_why(lab):
    (cell,) = grid(lab, {"big": parse_row("dca:chunk_size=9999")}, "passkey", [300], 1)
    assert "chunk_size + local_window" in cell.missing


def test_data_rows_name_their_file(lab):
    cells = data_cells(lab, {"stock": parse_row("stock")}, ["leval-toefl"], [512], 3)
    assert [(cell.row, cell.brief) for cell in cells] == [("leval-toefl", "needs `leval/tpo.jsonl`")]
    assert "--data-dir" in cells[0].missing and "L4NLP" in cells[0].missing


def test_depths():
    assert spread(1) == (0.5,) and spread(3) == (0.0, 0.5, 1.0)


def test_figures_survive_the_journal(tmp_path):
    sample = Sample("a", 1, 2, None, "", figures={"cover": 0.5, "hit1": math.nan})
    with Journal(tmp_path / "s.jsonl") as journal:
        journal.append("k", sample)
    with Journal(tmp_path / "s.jsonl") as journal:
        read = journal.samples["k"].figures
    assert read["cover"] == 0.5 and math.isnan(read["hit1"])
