"""Dual Chunk Attention's protocols: at the windows of its models they are the paper's, to the digit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from longspan.methods import DCA, ReRoPE
from longspan_eval.datafile import SAMPLES
from longspan_eval.reproduce import PAPERS, dca, dca_methods
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.report import PaperReport
from longspan_eval.reproduce.table import PaperPlan
from longspan_eval.reproduce.unseen import UNSEEN, records_of
from support.tables import figures_of, made, measured, table_of

K = 1024


@pytest.mark.parametrize(("window", "size"), [(4096, 3072), (8192, 6144), (32_768, 24_576)])
def test_dca_has_chunks_of_three_quarters_of_each_of_its_windows(at_window, window, size):
    session = at_window(window, windows=PAPERS["dca"].windows)
    method = made(dca_methods.method(session), DCA)
    assert (method.chunk_size, method.local_window, method.window) == (size, window - size, window)
    assert session.lengths([4 * K, 192 * K], 4096) == [4 * K, 192 * K]  # lengths are those of its tables all the same


def test_dca_rows(at_4096):
    assert [made(row, DCA).parts for name, row in dca_methods.parts(at_4096).items() if name != "stock"] == [
        "intra", "intra+inter", "all",
    ]  # fmt: skip
    rows = dca_methods.methods(at_4096)
    assert made(rows["ReRoPE"], ReRoPE).resolve(4096).w == 2048  # the paper's 7.94 at 4k is not stock's 7.87
    assert list(rows) == ["stock", "ReRoPE", "PI", "NTK", "YaRN", "dynamic NTK", "DCA"]


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("paper", "table", "thousands", "windows"),
    [("dca", "table-1", (4, 8, 16, 32, 64), 4096), ("dca", "figure-4", (8, 12, 16, 20, 24, 28, 32), 4096)],
)
def test_lengths_of_perplexity(at_window, monkeypatch, paper, table, thousands, windows):
    monkeypatch.setattr("longspan_eval.windows.heldout_text", lambda: "word " * 70_000)
    session = at_window(windows, windows=PAPERS[paper].windows, samples=1)
    cells = table_of(paper, table).cells(session)
    rows = dca_methods.methods(session) if table == "table-1" else dca_methods.parts(session)
    slid = [cell for cell in cells if ": " in cell.row and cell.measures]
    assert [cell.row.partition(": ")[2] for cell in slid] == [name for name in rows for _ in thousands]
    assert [cell.column for cell in slid if cell.row.endswith(": stock")] == [
        session.in_windows(n * K) for n in thousands
    ]
    found = [(cell.row, cell.column) for cell in cells if cell.column.startswith("passkeys")]
    right = thousands if table == "figure-4" else ()  # the figure's right half
    assert found == [(name, f"passkeys, {session.in_windows(n * K)}") for name in rows for n in right]


def test_needles_of_mistral_are_to_192k_at_its_window(at_window, unbuilt):
    session = at_window(32_768, windows=PAPERS["dca"].windows)
    cells = measured("dca", "figure-6", session)
    assert max(one.length for cell in cells for one in cell.measures) == 192 * K
    assert {one.name for cell in cells for one in cell.measures} == {"needle"}
    assert dca.MISTRAL == 32_768


def books(folder, *tokens):
    """PG19's validation books, of at least so many tokens each."""
    (folder / dca.PG19_VALIDATION.folder).mkdir(parents=True)
    for n, count in enumerate(tokens):
        text = f"Book {n}." + " and so on" * (count // 3)
        (folder / dca.PG19_VALIDATION.folder / f"{n}.txt").write_text(text)
    return folder


@pytest.mark.parametrize(("parameters", "stride"), [(7e9, 256), (70e9, 2048)])
def test_windows_slide_as_in_the_paper(at_4096, parameters, stride):
    at_4096.subject = replace(at_4096.subject, parameters=int(parameters))
    assert [dca.stride(at_4096, n) for n in (4, 64, 96)] == [stride] * 3
    assert [dca.stride(at_4096, n) for n in (128, 160, 192)] == [64 * K, 80 * K, 96 * K]


def test_perplexity_to_192k(at_4096, tmp_path):
    at_4096.samples = 2
    at_4096.data_dir = books(tmp_path, 70 * K, 100 * K, 200 * K)
    cells = {(cell.row, cell.column): cell for cell in measured("dca", "table-2", at_4096)}
    assert {row for row, _ in cells} == {"PG19 (validation): stock", "PG19 (validation): DCA"}
    columns = [column for row, column in cells if row.endswith("DCA")]
    assert columns == [f"{at_4096.in_windows(n * K)}, {read} of 3 documents" for n, read in
                       ((4, 3), (32, 3), (64, 3), (96, 2), (128, 1), (160, 1), (192, 1))]  # fmt: skip
    records = {one.length: one.record for cell in cells.values() for one in cell.measures}
    assert [records[n * K]["stride"] for n in (4, 96, 128, 160, 192)] == [256, 256, 64 * K, 80 * K, 96 * K]
    assert {record["mode"] for record in records.values()} == {"whole"}
    first = {cell.column: cell.measures for cell in measured("dca", "table-1", at_4096) if "stock" in cell.row}
    assert (
        first[at_4096.in_windows(4 * K)] == cells["PG19 (validation): stock", columns[0]].measures
    )  # as the paper's 7.87 is


def test_windows_that_overlap_have_an_interval_over_blocks(at_4096, tmp_path):
    """Of two books all windows overlap, of one book each: two observations, where the books are not one."""
    for books_read, interval in ((1, False), (2, True)):
        folder = books(tmp_path / f"{books_read}", *[70 * K] * books_read)
        at_4096.samples, at_4096.data_dir = None, folder
        table = table_of("dca", "table-1")
        cells = [cell for cell in measured("dca", "table-1", at_4096) if cell.row.endswith("stock")]
        plan = PaperPlan(replace(table, cells=lambda _, own=cells: own), at_4096)
        keys = {request.key: request.measure for part in plan.missing({}) for request in part}
        samples = {key: one.sample(loss=3 + one.seed / 1000, scored=one.length - 1) for key, one in keys.items()}
        report = PaperReport(folder, PAPERS["dca"], at_4096, [plan], "longspan reproduce", "cpu")
        assert "Windows of mode whole overlap: those that score the same tokens are one block" in report.write(samples)
        found = json.loads((folder / "results.json").read_text())["tables"]["table-1"]["cells"]
        assert {one["blocks"] for one in found} == {books_read} and all(one["n"] > books_read for one in found)
        assert {one["interval"] is not None for one in found} == {interval}


def test_without_books_a_table_asks_for_them_once(at_4096):
    briefs = [cell.brief for cell in table_of("dca", "table-2").cells(at_4096) if "needs" in cell.brief]
    assert briefs == [f"needs `{dca.PG19_VALIDATION.folder}`"]


@pytest.mark.parametrize(
    ("table", "tasks", "tokens"),
    [
        ("table-3", {"narrativeqa", "qasper", "quality", "qmsum"}, 16_384),
        ("table-4", {"toefl", "quality", "coursera", "sfiction"}, 32_768),
        ("table-5", {"qasper", "quality", "qmsum"}, 16_384),
    ],
)
def test_practical_tasks(at_4096, tmp_path, table, tasks, tokens):
    shutil.copytree(SAMPLES, tmp_path / "data")
    at_4096.data_dir = tmp_path / "data"
    asked = figures_of("dca", table, at_4096)
    cells = measured("dca", table, at_4096)
    cut = [one for cell in cells if cell.column.startswith(INSIDE) for one in cell.measures]
    assert {one.length for one in asked if one not in cut} == {tokens}
    assert {one.name.split("-")[1] for one in asked} == tasks
    rows = {one.spec.label.partition(":")[0] for one in asked}
    if table == "table-5":
        assert rows == {"stock", "dca"}
        choices = {one.name.partition("quality")[2] for one in asked if "quality" in one.name}
        assert choices == {"", "-best", "-worst"}
    else:
        assert rows == {"stock", "dynamic-ntk", "dca"}
        means = [cell for cell in cells if cell.row == "mean"]
        assert {len({one.name for one in cell.measures}) for cell in means} == {4} and len(means) == 4


@pytest.mark.parametrize("table", ["table-3", "table-4"])
def test_the_papers_stock_rows_are_of_prompts_that_fit_the_window(at_4096, at_window, tmp_path, table):
    shutil.copytree(SAMPLES, tmp_path / "data")
    at_4096.data_dir = tmp_path / "data"
    cells = [cell for cell in measured("dca", table, at_4096) if cell.column == f"{INSIDE}, 1x (4,096)"]
    assert len(cells) == 5  # four tasks and their mean
    assert {(one.length, one.spec.label) for cell in cells for one in cell.measures} == {(4096, "stock")}
    assert "Stock inside the window" in table_of("dca", table).protocol(at_4096)
    long = at_window(32_768, windows=PAPERS["dca"].windows, data_dir=tmp_path / "data")  # no prompt is longer
    assert not [cell for cell in measured("dca", table, long) if cell.column.startswith(INSIDE)]
    assert "Stock inside the window" not in table_of("dca", table).protocol(long)


def test_the_papers_questions_have_a_figure_for_each_of_its_tables(at_4096, tmp_path):
    (tmp_path / "unseen").mkdir()
    (tmp_path / "unseen" / "paper.txt").write_text("A paper on dual chunk attention.")
    at_4096.data_dir = tmp_path
    cells = {cell.column: len(cell.measures) for cell in measured("dca", "table-6", at_4096) if cell.row == "DCA"}
    assert (cells["F1, easy (Table 6)"], cells["F1, hard (Table 7)"], cells["F1"]) == (6, 4, 10)
    shutil.copy(SAMPLES / "unseen" / "questions.jsonl", tmp_path / "unseen")
    assert not [cell for cell in measured("dca", "table-6", at_4096) if "easy" in cell.column]  # others' questions


@pytest.mark.parametrize("said", ["CodeLlama and Together's Llama2", "The Llama2 70B"])
def test_a_question_with_two_answers_takes_either(at_4096, tmp_path, said):
    """Table 6 marks the second as wrong for no model."""
    (tmp_path / "unseen").mkdir()
    (tmp_path / "unseen" / "paper.txt").write_text("A paper on dual chunk attention.")
    (record,) = (one for one in records_of(tmp_path) if "192k" in one["question"])
    example = UNSEEN.build(at_4096.tokenizer, length=1000, seed=0, record=record)
    assert UNSEEN.score(said, example.references) == 1.0
    assert UNSEEN.score("Llama2 13B", example.references) < 1.0


def test_relative_positions_of_the_papers_examples(at_4096):
    cells = table_of("dca", "figure-2").cells(at_4096)
    largest = {cell.row.partition(",")[0]: cell.figure.value for cell in cells if "largest" in cell.column}
    assert largest == {"Figure 2": 9, "Figure 8": 7}


def test_a_needle_of_192k_is_scaled_unless_told_otherwise(at_window, unbuilt):
    for scale_to, longest in (("auto", 24 * K), ("paper", 192 * K)):
        session = at_window(4096, windows=PAPERS["dca"].windows, scale_to=scale_to)
        assert max(one.length for one in figures_of("dca", "figure-6", session)) == longest
        assert f"to {longest:,} tokens" in table_of("dca", "figure-6").protocol(session)


@pytest.mark.parametrize(
    ("window", "scale_to", "scaled"),
    [(4096, "auto", True), (512, "auto", True), (32_768, "auto", False), (4096, "paper", False)],
)
def test_numbers_that_are_not_as_printed_are_named_in_the_head(at_window, unbuilt, tmp_path, window, scale_to, scaled):
    session = at_window(window, windows=PAPERS["dca"].windows, scale_to=scale_to, scale="quick")
    plans = [PaperPlan(table_of("dca", name), session) for name in ("figure-5", "figure-6")]
    text = PaperReport(tmp_path, PAPERS["dca"], session, plans, "longspan reproduce", "cpu").write({})
    assert ("as it prints them" in text) is (window != 512)
    assert ("Those of Figure 6 are of a window of 32,768 tokens, and scaled from that." in text) is scaled
    alone = PaperReport(tmp_path, PAPERS["dca"], session, plans[:1], "longspan reproduce", "cpu").write({})
    assert "Figure 6" not in alone


def test_quick_tables_say_what_the_model_can_do_inside_its_window(at_window):
    for name in ("figure-4", "figure-6"):
        cells = measured("dca", name, at_window(512, scale="quick"))
        assert {one.length for cell in cells if cell.row == INSIDE for one in cell.measures} == {512}
