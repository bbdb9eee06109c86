"""Every table runs; a run that was killed gives the same as one that was not; what is missing is named."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from rich.console import Console

from longspan.errors import DataError, LongspanError
from longspan.hf.attach import attachment_of
from longspan_eval.cell import Cell
from longspan_eval.datafile import SAMPLES
from longspan_eval.journal import Journal
from longspan_eval.measure import Prompt
from longspan_eval.reduce import found, mean_of
from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.cells import INSIDE, data_cells, grid, perplexity_cells
from longspan_eval.reproduce.measures import Inspected, Timed
from longspan_eval.reproduce.memory import Peak
from longspan_eval.reproduce.published import published
from longspan_eval.reproduce.report import PaperReport, notes
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import Paper, PaperPlan, Table, select
from longspan_eval.reproduce.texts import PG19
from longspan_eval.run import here, measure
from longspan_eval.sample import Sample
from longspan_eval.schedule import Plan
from longspan_eval.spec import parse_spec, parse_specs
from longspan_eval.studies.eval import Evaluation, spread
from longspan_eval.tasks import TASKS
from longspan_eval.windows import PERPLEXITY as TASK
from longspan_eval.windows import find_windows

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


def quietly(plans, session, path, deadline=None):
    """Measure what plans have left, as the command does; the samples."""
    console = Console(file=io.StringIO())
    with Journal(path) as journal:
        for plan in plans:
            answers = partial(here, session=session, deadline=deadline)
            pace = plan.pace(session.subject, journal.samples)
            measure(plan, plan.missing(journal.samples), journal, pace, answers, console=console)
        return dict(journal.samples)


def texts(plan, samples):
    return [str(figure) for _, figure in plan.figures(samples)]


def plan_of(paper, name, session):
    return PaperPlan(select(PAPERS[paper], [name])[0], session)


def few(table, session):
    """A plan of a table with the corners of what is measured, and all that takes no measuring."""
    cells = table.cells(session)
    rows = list(dict.fromkeys(cell.row for cell in cells if cell.measures))
    columns = list(dict.fromkeys(cell.column for cell in cells if cell.measures))
    edges = {*rows[:1], *rows[-1:]}, {*columns[:1], *columns[-1:]}
    kept = [cell for cell in cells if not cell.measures or (cell.row in edges[0] and cell.column in edges[1])]
    return PaperPlan(replace(table, cells=lambda _: kept), session)


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_every_table_runs(paper, name, session, tmp_path):
    if name == "passkey-far":
        session.max_length = 16 * session.subject.window
    plan = few(select(PAPERS[paper], [name])[0], session)
    samples = quietly([plan], session, tmp_path / "samples.jsonl")
    assert not plan.missing(samples) and attachment_of(session.model) is None
    figures = plan.figures(samples)
    assert not [figure.reason for cell, figure in figures if cell.missing is None and figure.reason is not None]
    measured = [figure for _, figure in figures if figure.reason is None]
    assert not any(figure.unfinished for figure in measured)
    if (paper, name) in READS:
        assert not measured
        assert any(READS[paper, name] in str(figure) and "--data-dir" in figure.reason for _, figure in figures)
    elif (paper, name) == ("esa", "recall"):
        assert "a calibration" in str(figures[0][1]) and "longspan calibrate" in figures[0][1].reason
    else:
        assert len(measured) >= (1 if name == "passkey-far" else 2)
    report = PaperReport(tmp_path, PAPERS[paper], session, [plan], "longspan reproduce", "cpu")
    text = report.write(samples)
    assert text == (tmp_path / "summary.md").read_text() and "/" + "work" not in text
    assert (
        plan.table.where in text
        and ("not at hand: see" in text) is not plan.table.whole
        and PAPERS[paper].hardware in text
    )
    body = json.loads((tmp_path / "results.json").read_text())["tables"][name]
    assert len(body["cells"]) == len(figures) and len(body["published"]) == len(published(paper, name))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_planned_at_the_papers_scale(paper, at_window):
    session = at_window(128, scale="paper", samples=2, max_length=1024)
    for table in PAPERS[paper].tables:
        plan = PaperPlan(table, session)
        assert plan.cells and len(plan.protocol) > 40
        for cell, figure in plan.figures({}):
            assert str(figure) in ("·", "n/a", "-") or cell.figure is not None or "needs" in str(figure)


@pytest.mark.parametrize(("paper", "name"), [*sorted(READS.keys() - {("esa", "longbench")}), ("dca", "perplexity")])
def test_with_data(paper, name, session, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(SAMPLES, data)
    (data / "perplexity").mkdir()
    (data / "perplexity" / "pg19.txt").write_text("It was a dark night and the sea was calm. " * 150)
    session.data_dir, session.max_length = data, None
    table = select(PAPERS[paper], [name])[0]
    plan = PaperPlan(table, session)
    # One of each kind of cell is enough: the tasks are tested by themselves.
    measured = [n for n, cell in enumerate(plan.cells) if cell.measures][:3]
    assert measured
    for n in measured:
        sample = session.measure(plan.cells[n].measures[0])
        assert sample.error is None, sample.error
    session.detach()
    if name == "perplexity":
        assert plan.cells[0].row == "PG19: stock"


def test_a_broken_file_is_an_error_before_anything_is_measured(session, tmp_path):
    (tmp_path / "leval").mkdir()
    (tmp_path / "leval" / "tpo.jsonl").write_text('{"input": 1}\n')
    session.data_dir = tmp_path
    with pytest.raises(DataError, match=r"tpo\.jsonl, line 1"):
        plan_of("dca", "zero-shot", session)


def test_questions_without_a_paper(session, tmp_path):
    (tmp_path / "unseen").mkdir()
    shutil.copy(SAMPLES / "unseen" / "questions.jsonl", tmp_path / "unseen")
    session.data_dir = tmp_path
    with pytest.raises(DataError, match=r"paper\.txt: there is no text"):
        plan_of("dca", "unseen", session)


class Killed(BaseException):
    """What a signal is to the code that it ends."""


def test_a_kill_and_resume_give_the_same(session, tmp_path, monkeypatch, after=5):
    def without_times(samples):  # losses as the journal keeps them
        return {k: (one.prediction, one.correct, f"{one.loss:.6f}", one.error) for k, one in samples.items()}

    session.max_length = 2 * session.subject.window
    plans = [few(select(PAPERS["longheads"], [name])[0], session) for name in ("perplexity", "passkey", "split")]
    straight = quietly(plans, session, tmp_path / "straight.jsonl")
    real, done = PaperSession.measure, []

    def dies(self, one):
        if len(done) == after:
            raise Killed
        done.append(one)
        return real(self, one)

    monkeypatch.setattr(PaperSession, "measure", dies)
    with pytest.raises(Killed):
        quietly(plans, session, tmp_path / "killed.jsonl")
    assert attachment_of(session.model) is None
    monkeypatch.setattr(PaperSession, "measure", real)
    with (tmp_path / "killed.jsonl").open("ab") as file:
        file.write(b'{"key": "torn')
    resumed = quietly(plans, session, tmp_path / "killed.jsonl")
    assert len(resumed) > after and without_times(resumed) == without_times(straight)
    for plan in plans:
        assert texts(plan, straight) == texts(plan, resumed) and not plan.missing(resumed)


def test_a_deadline_begins_nothing_new(session, tmp_path):
    plan = plan_of("longheads", "passkey", session)
    samples = quietly([plan], session, tmp_path / "samples.jsonl", deadline=0.0)
    assert not samples and set(texts(plan, samples)) == {"·", "n/a"}


def test_full_attention_that_takes_too_long_is_marked(session, tmp_path, monkeypatch):
    # Stock takes a second at 300 tokens; what it takes at 600 is known from that, also when a run is taken up again.
    measured = []

    def takes(self, one):
        measured.append((one.spec.label, one.length))
        return one.sample(seconds=one.length / 300, tokens=one.length)

    monkeypatch.setattr(PaperSession, "measure", takes)
    cells = [
        Cell(row, f"{length}", found, passkeys(3, row, length)) for row in ("stock", "dca") for length in (300, 600)
    ]
    plan = PaperPlan(table_of(cells), session, max_full_seconds=1.5)
    quietly([PaperPlan(table_of(cells[:1]), session)], session, tmp_path / "s.jsonl")
    samples = quietly([plan], session, tmp_path / "s.jsonl")
    assert [text.split(" ")[0] for text in texts(plan, samples)] == ["0%", "skipped", "0%", "0%"]
    assert "about 2" in (said := plan.figure(1, samples).reason) and said.endswith("--max-full-seconds 1.5")
    assert ("stock", 600) not in measured and measured.count(("dca", 600)) == 3


def table_of(cells, **more):
    return Table("synthetic", "A table", "Table 0", lambda session: "a protocol", lambda session: cells, **more)


def passkeys(count, row="stock", length=300):
    return tuple(Prompt(parse_spec(row), length, n, task=TASKS["passkey"]) for n in range(count))


def test_an_error_ends_its_cell_and_no_other(session, tmp_path):
    cells = [Cell("bad", "x", found, passkeys(3, length=20)), Cell("good", "x", found, passkeys(2))]
    plan = PaperPlan(table_of(cells), session)
    samples = quietly([plan], session, tmp_path / "samples.jsonl")
    (_, bad), (_, good) = plan.figures(samples)
    assert str(bad) == "error" and "20 tokens are too few" in bad.reason and good.n == 2
    assert len(samples) == 3 and not plan.missing(samples)
    assert notes(plan.figures(samples)) == [f"- bad: {bad.reason}."]


def test_cells_that_share_measures_measure_once(session, tmp_path):
    looks = (Inspected(parse_spec("longheads"), 400, task=TASKS["passkey-prose"]),)
    cells = [Cell("a", "cover", mean_of("cover", "share"), looks), Cell("a", "Gini", mean_of("gini", "number"), looks)]
    plan = PaperPlan(table_of(cells), session)
    samples = quietly([plan], session, tmp_path / "samples.jsonl")
    assert len(samples) == 1 and all(figure.n == 1 for _, figure in plan.figures(samples))
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
def test_stock_is_in_every_table_that_compares(paper, name, session, tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    session.data_dir, session.samples, session.max_length = tmp_path / "data", 2, None
    cells = [cell for cell in plan_of(paper, name, session).cells if cell.measures]
    rows = {measure.spec.label for cell in cells for measure in cell.measures}
    assert "stock" in rows and len(rows) > 1
    for cell in cells:  # it is what it is called
        only = {measure.spec.label for measure in cell.measures}
        if any(part.startswith("stock") for part in (cell.row, cell.column, cell.row.partition(": ")[2])):
            assert only == {"stock"}


@pytest.mark.parametrize(("paper", "name"), [("longheads", "ablations"), ("esa", "proximity")])
def test_what_the_model_can_do_at_all_stands_beside_ablations(paper, name, session):
    inside = [cell for cell in plan_of(paper, name, session).cells if cell.row == INSIDE and cell.measures]
    assert inside and {measure.length for cell in inside for measure in cell.measures} == {session.subject.window}


def test_stock_answers_the_prompts_that_are_looked_at(session):
    session.samples = 8
    cells = {(cell.row, cell.column): cell for cell in plan_of("longheads", "split", session).cells}
    stock, own = (cells[row, "split over chunks"].measures for row in ("stock", "LongHeads"))
    assert [(one.seed, one.length) for one in stock] == [(one.seed, one.length) for one in own]
    pairs = [(cut, look) for cut, look in zip(stock, own, strict=True) if cut.length == 256]
    assert len(pairs) == 8
    told = [[session.measure(one).figures["split"] for one in pair] for pair in pairs]
    assert all(a == b for a, b in told) and len({a for a, _ in told}) == 2


def test_cells_take_turns_where_times_are_compared(session):
    cells = [Cell("a", "x", found, passkeys(3)), Cell("b", "x", found, passkeys(2, "dca"))]
    for interleaved, order in ((True, [0, 1, 0, 1, 0]), (False, [0, 1, 0, 0, 1])):
        plan = PaperPlan(table_of(cells, interleaved=interleaved), session)
        assert [request.cell for part in plan.missing({}) for request in part] == order


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
def test_perplexity_is_that_of_the_eval_task(session, tmp_path, mode, samples):
    (tmp_path / "perplexity").mkdir()
    path = tmp_path / PG19.file
    path.write_text("It was a dark night and the sea was calm, and nobody knew. " * 60)
    session.data_dir, lengths, specs = tmp_path, (64, 200), parse_specs(["stock", "streaming-llm:recent=24"])
    cells = perplexity_cells(
        session, {spec.label: spec for spec in specs}, (PG19,), lengths, stride=32, mode=mode, windows=samples
    )
    ours = {
        (cell.row.partition(": ")[2], cell.column): cell.figure_of([session.measure(one) for one in cell.measures])
        for cell in cells
    }
    windows = find_windows(session.tokenizer, [path], longest=200, stride=32, mode=mode)
    study = Evaluation((TASK,), tuple(specs), lengths, samples=samples or 10**6, windows=windows)
    told = {(cell.row, cell.column): cell.figure_of(map(session.measure, cell.measures)) for cell in study.cells()}
    assert ours == told and len(told) == 4 and len({figure.value for figure in told.values()}) == 4
    assert told["stock", "64"].n == (samples or len(windows.records)) > 2
    plan = Plan(study.cells(), session.keys)
    assert {key for keys in Plan(cells, session.keys).keys for key in keys} == {k for keys in plan.keys for k in keys}


def test_a_text_that_is_too_short_says_so(session, tmp_path):
    (tmp_path / "perplexity").mkdir()
    (tmp_path / "perplexity" / "pg19.txt").write_text("Short.")
    session.data_dir = tmp_path
    (cell,) = perplexity_cells(session, {"a": parse_spec("stock")}, (PG19,), [64], stride=8, mode="new", windows=2)
    assert "too few for a window of 64" in cell.missing


@pytest.mark.parametrize("implementation", ["eager", "sdpa", None])
def test_timed(session, implementation):
    session.model.generation_config.eos_token_id = None
    before = session.model.config._attn_implementation
    row = parse_spec("stock" if implementation else "dca")
    sample = session.measure(Timed(row, 300, 0, answers=implementation is None, implementation=implementation))
    assert sample.error is None and sample.figures["prefill"] > 0 and sample.figures["memory"] >= 0
    assert ("token" in sample.figures) is (implementation is None)
    if implementation is not None:
        assert session.model.config._attn_implementation == implementation
    session.detach()
    assert session.model.config._attn_implementation == before


def test_memory_is_what_the_work_takes():
    with Peak(torch.device("cpu")) as peak:
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


def test_depths():
    assert spread(1) == (0.5,) and spread(3) == (0.0, 0.5, 1.0)


def test_figures_survive_the_journal(tmp_path):
    sample = Sample("a", 1, 2, None, "", figures={"cover": 0.5, "hit1": math.nan})
    with Journal(tmp_path / "s.jsonl") as journal:
        journal.append("k", sample)
    with Journal(tmp_path / "s.jsonl") as journal:
        read = journal.samples["k"].figures
    assert read["cover"] == 0.5 and math.isnan(read["hit1"])


def test_published_figures_have_sources_and_tables():
    for paper in PAPERS.values():
        for table in paper.tables:
            assert all(all(part.strip() for part in one) for one in published(paper.name, table.name))
    memory = [one.figure for one in published("longheads", "efficiency")]
    assert "4.14 s" in memory and any("42.3 GB" in one and "44.48 GB" in one for one in memory)
    assert published("longheads", "perplexity") == []
