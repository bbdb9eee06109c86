"""Every table runs; a run that was killed gives the same as one that was not; what is missing is named."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from longspan_eval.cell import Cell
from longspan_eval.datafile import SAMPLES
from longspan_eval.errors import DataError
from longspan_eval.journal import Journal
from longspan_eval.measure import TaskPrompt
from longspan_eval.reduce import found, mean_of
from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.measures import Inspected
from longspan_eval.reproduce.published import published
from longspan_eval.reproduce.report import PaperReport, notes
from longspan_eval.reproduce.table import PaperPlan, PaperTable, check_data, select
from longspan_eval.reproduce.texts import PG19_TEST, PG19_VALIDATION, PROOF_PILE
from longspan_eval.run import in_process, measure
from longspan_eval.spec import parse_spec
from longspan_eval.tasks import TASKS

EVERY = [(paper, table.name) for paper, made in PAPERS.items() for table in made.tables]
READS = {  # tables that have nothing without data, and a file of each
    ("longheads", "table-2"): "longbench/narrativeqa.jsonl",
    ("dca", "table-3"): "scrolls/narrative_qa/validation.jsonl",
    ("dca", "table-4"): "leval/tpo.jsonl",
    ("dca", "table-5"): "scrolls/qasper/validation.jsonl",
    ("dca", "table-6"): "unseen/paper.txt",
    ("esa", "table-1"): "longbench/narrativeqa.jsonl",
    ("esa", "table-6"): "files of `longbench/`",
    ("esa", "table-9"): "files of `longbench/`",
}
LONG = {("esa", "table-3"), ("esa", "table-4")}  # tables of prompts that four windows of 128 tokens are too few for

ALONE = {
    ("dca", "figure-2"),
    ("esa", "figure-2"),
    ("esa", "eq-9"),
    ("longheads", "section-4.1"),
    ("longheads", "figure-5"),
}  # no row of stock


def quietly(plans, session, path, deadline=None):
    """Measure what plans have left, as the command does; the samples."""
    console = Console(file=io.StringIO())
    with Journal(path) as journal:
        for plan in plans:
            answers = partial(in_process, session=session, deadline=deadline)
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
    by_row: dict[str, list[Cell]] = {}
    for cell in cells:
        by_row.setdefault(cell.row, []).extend([cell] if cell.measures else [])
    rows = [own for own in by_row.values() if own]
    corners = {own[n].place for own in [*rows[:1], *rows[-1:]] for n in (0, -1)}
    kept = [cell for cell in cells if not cell.measures or cell.place in corners]
    return PaperPlan(replace(table, cells=lambda _: kept), session)


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_every_table_runs(paper, name, session, tmp_path):
    if (paper, name) == ("dca", "figure-6"):
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
    elif (paper, name) == ("esa", "figure-2"):
        assert "a calibration" in str(figures[0][1]) and "longspan calibrate" in figures[0][1].reason
    else:
        assert len(measured) >= 2 or (paper, name) in LONG
    report = PaperReport(tmp_path, PAPERS[paper], session, [plan], "longspan reproduce", "cpu")
    text = report.write(samples)
    assert text == (tmp_path / "summary.md").read_text() and "/" + "work" not in text
    assert f"## {' and '.join(plan.table.numbers)}: {plan.table.title}" in text and PAPERS[paper].hardware in text
    body = json.loads((tmp_path / "results.json").read_text())["tables"][name]
    beside = [one for number in plan.table.numbers for one in published(paper, number)]
    assert len(body["cells"]) == len(figures) and len(body["published"]) == len(beside) >= 1
    for one in beside:
        assert f"**Published, {one.number}**: {one.title}" in text
        assert (f"Not at hand: {one.unread}" in text) is (one.unread is not None)
    assert text.count("Not at hand") == sum(one.unread is not None for one in beside)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_planned_at_the_papers_scale(paper, at_window):
    session = at_window(128, scale="paper", samples=2, max_length=1024)
    for table in PAPERS[paper].tables:
        plan = PaperPlan(table, session)
        assert plan.cells and len(plan.protocol) > 40
        for cell, figure in plan.figures({}):
            assert str(figure) in ("·", "n/a", "-") or cell.figure is not None or "needs" in str(figure)


@pytest.mark.parametrize(
    ("paper", "name"), [*sorted(READS.keys() - {("esa", "table-1"), ("esa", "table-9")}), ("dca", "table-1")]
)
def test_with_data(paper, name, session, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(SAMPLES, data)
    (data / PG19_VALIDATION.folder).mkdir(parents=True)
    (data / PG19_VALIDATION.folder / "book.txt").write_text("It was a dark night and the sea was calm. " * 150)
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
    if (paper, name) == ("dca", "table-1"):
        assert plan.cells[0].row == "PG19 (validation): stock"
    elif name != "table-5" and name != "table-6":
        # Few of the prompts can be cut to a window of 128 tokens.
        means = [cell for cell in plan.cells if cell.row.startswith("mean") and not cell.column.startswith(INSIDE)]
        assert means and all(len(cell.measures) > 1 for cell in means)


def named(call, folder, files):
    """The files that ``call`` finds broken, each of which is mended for it to find the next one."""
    found = set()
    while True:
        try:
            call()
        except DataError as error:
            (name,) = [file for file in files - found if str(error).startswith(str(folder / file))]
            found.add(name)
            (folder / name).write_bytes(files_of(SAMPLES).get(name, b"a text"))
        else:
            return found


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_a_table_says_which_files_it_reads(paper, name, session, tmp_path, unbuilt):
    table, found = select(PAPERS[paper], [name])[0], []
    names = {one.data.name for one in TASKS.values() if one.data is not None} | {"unseen/questions.jsonl"}
    books = {f"{one.folder}/book.txt" for one in (PG19_TEST, PG19_VALIDATION, PROOF_PILE)}
    for n in range(2):
        folder = tmp_path / f"{n}"
        shutil.copytree(SAMPLES, folder)
        for file in books:
            (folder / file).parent.mkdir(parents=True)
        for file in names | books:
            (folder / file).write_bytes(b"\xff")
        session.data_dir = folder
        call = partial(check_data, [table], folder) if n == 0 else partial(table.cells, session)
        found.append(named(call, folder, names | books))
    assert found[0] == found[1]
    if (paper, name) in READS:
        assert found[0]


def test_questions_without_a_paper(session, tmp_path):
    (tmp_path / "unseen").mkdir()
    shutil.copy(SAMPLES / "unseen" / "questions.jsonl", tmp_path / "unseen")
    session.data_dir = tmp_path
    (cell,) = plan_of("dca", "table-6", session).cells
    assert cell.brief == "needs `unseen/paper.txt`"
    (tmp_path / "unseen" / "paper.txt").write_text(" ")
    with pytest.raises(DataError, match=r"paper\.txt: there is no text"):
        plan_of("dca", "table-6", session)


def table_of(cells, **more):
    return PaperTable("Table 0", "A table", lambda session: "a protocol", lambda session: cells, **more)


def passkeys(count, row="stock", length=300):
    return tuple(TaskPrompt(parse_spec(row), length, n, task=TASKS["passkey"]) for n in range(count))


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
        if (paper, table.name) not in ALONE
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


def test_what_the_model_can_do_at_all_stands_beside_ablations(session):
    inside = [cell for cell in plan_of("longheads", "table-4", session).cells if cell.row == INSIDE and cell.measures]
    assert inside and {measure.length for cell in inside for measure in cell.measures} == {session.subject.window}


def test_stock_answers_the_prompts_that_are_looked_at(session):
    session.samples = 8
    cells = {(cell.row, cell.column): cell for cell in plan_of("longheads", "table-7", session).cells}
    stock, own = (cells[row, "split over chunks"].measures for row in ("stock", "LongHeads, k = 8"))
    assert [(one.seed, one.length) for one in stock] == [(one.seed, one.length) for one in own]
    pairs = [(cut, look) for cut, look in zip(stock, own, strict=True) if cut.length == 256]
    assert len(pairs) == 8
    told = [[session.measure(one).figures["split"] for one in pair] for pair in pairs]
    assert all(a == b for a, b in told)
    others = [replace(pairs[0][0], chunk=chunk) for chunk in (2, 256)]
    assert [session.measure(one).figures["split"] for one in others] == [1.0, 0.0]


def test_cells_take_turns_where_times_are_compared(session):
    cells = [Cell("a", "x", found, passkeys(3)), Cell("b", "x", found, passkeys(2, "dca"))]
    for interleaved, order in ((True, [0, 1, 0, 1, 0]), (False, [0, 1, 0, 0, 1])):
        plan = PaperPlan(table_of(cells, interleaved=interleaved), session)
        assert [request.cell for part in plan.missing({}) for request in part] == order


def test_the_picture_of_chosen_chunks_is_drawn_if_its_prompt_can_be_read(session, tmp_path):
    table = select(PAPERS["longheads"], ["figure-5"])[0]
    assert table.pictures(session, tmp_path) == ["figure-5.png"] and (tmp_path / "figure-5.png").stat().st_size > 2000
    session.max_length = session.subject.window
    assert table.pictures(session, tmp_path) == []


def test_tables_are_selected_by_name():
    paper = PAPERS["longheads"]
    assert [table.name for table in select(paper, ["table-7", "figure-4"])] == ["figure-4", "table-7"]
    assert select(paper, None) == paper.tables
    assert [table.name for table in select(paper, ["table-8"])] == ["table-2"]  # which makes both again
    assert [table.name for table in select(paper, ["table-8", "table-2"])] == ["table-2"]
    assert [table.name for table in select(PAPERS["dca"], ["figure-8", "table-7"])] == ["figure-2", "table-6"]
    with pytest.raises(LongspanError, match="no table 'nine'; it has table-1"):
        select(paper, ["nine"])
    with pytest.raises(LongspanError, match="table-1 is named twice"):
        select(paper, ["table-1", "table-1"])
