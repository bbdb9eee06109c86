"""ESA's protocols: at the windows of its models, 8k and 32k, they are the paper's, to the digit."""

from __future__ import annotations

import re
import shutil

import pytest

from longspan.bundled import FOLDER
from longspan.methods import DCA, ESA, InfLLM
from longspan_eval.datafile import SAMPLES
from longspan_eval.reproduce import PAPERS, esa, esa_methods
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.counts import components_from
from longspan_eval.reproduce.texts import Text
from longspan_eval.tasks import TASKS
from support.tables import figures_of, made, measured, table_of

K = 1024


@pytest.mark.parametrize("window", [8192, 32_768])
def test_esa_keeps_the_papers_numbers_at_both_of_its_windows(at_window, window):
    session = at_window(window, windows=PAPERS["esa"].windows)
    rows = esa_methods.methods(session, 200 * K)
    own, infllm = made(rows["ESA"], ESA), made(rows["InfLLM"], InfLLM)
    assert (own.initial, own.local, own.top_k, own.query_chunk, own.dense) == (128, 4096, 2048, 512, "kept")
    assert own.resolve(window).plain_queries(window) == 6272  # it chooses inside the window too
    assert (infllm.block, infllm.blocks, infllm.dense) == (128, 16, "kept")
    assert rows["NTK"].method.angles.target_length == rows["YaRN"].method.angles.target_length == 200 * K
    assert rows["NTK"].reaching(4096).angles.target_length == 200 * K  # not the length of each prompt
    assert ("NTK" in esa_methods.methods(session, 32 * K)) is (window == 8192)


@pytest.mark.parametrize("window", [8192, 32_768, 512, 1000, 131_072])
@pytest.mark.parametrize("scale_to", ["auto", "window"])
def test_methods_of_equal_token_counts(at_window, window, scale_to):
    rows = esa_methods.methods(at_window(window, windows=PAPERS["esa"].windows, scale_to=scale_to), 10**6)
    selecting = ("StreamingLLM", "LM-Infinite", "InfLLM", "ESA")
    assert len({esa_methods.kept(rows[name].method, window) for name in selecting}) == 1
    assert list(rows)[:3] == ["stock", "NTK", "YaRN"]  # full attention, as the paper has it


def test_numbers_are_scaled_to_what_is_said(at_window):
    def session(scale_to):
        return at_window(16_384, windows=(8192,), scale_to=scale_to)

    assert [session(how).tokens(128, 8192) for how in ("auto", "window", "paper")] == [256, 256, 128]
    assert at_window(8192, windows=(8192,), scale_to="window").tokens(128, 8192) == 128


def test_a_method_that_keeps_everything_has_no_count():
    with pytest.raises(ValueError, match="dca keeps no fixed number"):
        esa_methods.kept(DCA(), 512)


def test_esa_rows_of_ablations(at_window):
    session = at_window(8192, windows=(8192,))
    assert [made(row, ESA).proximity for row in esa_methods.proximities(session).values()] == [0, 1, 3, 5]
    assert [row.method.combine for row in esa_methods.heads(session).values()] == ["max", "sum"]
    top = esa_methods.infinite(session, "middle_top_k=5").method
    assert (top.sinks, top.recent, top.middle_top_k) == (128, 6144, 5)


def test_esa_reads_longbench_and_not_longbench_e():
    assert len(esa.LONG) == 16 and not any("-e-" in name for name in esa.LONG)


@pytest.mark.usefixtures("unbuilt")
def test_needlebench_has_ten_lengths_and_three_needles(at_window):
    session = at_window(32_768, windows=PAPERS["esa"].windows)
    assert esa.needle_lengths(session) == [n * K for n in (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)]
    for name in ("table-4", "table-5"):
        cells = [cell for cell in measured("esa", name, session) if "mean" in cell.column]
        needles = [[one for one in cell.measures if one.name == "multi-needle-3"] for cell in cells]
        assert {len(some) for some in needles} == {100}  # ten a length


@pytest.mark.usefixtures("unbuilt")
def test_counting_stars_are_of_32_lengths(at_window):
    session = at_window(8192, windows=PAPERS["esa"].windows)
    cells = {cell.column: cell for cell in measured("esa", "table-3", session) if cell.row == "ESA"}
    assert set(cells) == {f"({n * K:,}, 32, {stars})" for n in (128, 256) for stars in (32, 16)} | {"mean"}
    lengths = [one.length for one in cells[f"({256 * K:,}, 32, 16)"].measures]
    assert lengths == [8 * K * n for n in range(1, 33)]
    assert {one.name for one in cells[f"({256 * K:,}, 32, 16)"].measures} == {"counting-stars-16"}
    # The test of 256k has lengths that the one of 128k has, too; a prompt counts as much whatever its length.
    asked = cells["mean"].measures
    for found in (4 * K, 8 * K):
        right = next(n for n, one in enumerate(asked) if one.length == found)
        scores = [one.sample(correct=float(n == right)) for n, one in enumerate(asked)]
        assert len(asked) == 128 and cells["mean"].figure_of(scores).value == 1 / 128


@pytest.mark.parametrize("window", [8192, 32_768])
def test_infinitebench_is_of_the_published_sizes_which_fit_the_limit(at_window, window):
    session = at_window(window, windows=PAPERS["esa"].windows)
    every = table_of("esa", "table-2").cells(session)
    cells = [cell for cell in every if cell.measures]
    sizes = {cell.column: len(cell.measures) for cell in cells if cell.row == "ESA"}
    published = {"kv": 500, "math-find": 350, "number": 590, "passkey": 590}
    limit = session.in_windows(256 * K)
    made_ones = {f"infinitebench-{name}-official, {limit}": n for name, n in published.items()}
    assert sizes == {**made_ones, "mean of 4 of 6": sum(published.values())}  # two are from files
    assert not [cell for cell in every if cell.missing is not None and "needs" not in cell.brief]
    assert cells[0].measures[0].spec.label == "stock"
    targets = {
        one.spec.method.angles.target_length for cell in cells for one in cell.measures[:1] if cell.row == "YaRN"
    }
    assert targets == {200 * K}


def test_the_ablation_of_proximity_reads_the_published_pairs(at_window):
    session = at_window(32_768, windows=PAPERS["esa"].windows)
    cells = [cell for cell in table_of("esa", "table-5").cells(session) if "infinitebench" in cell.column]
    assert [cell.row for cell in cells] == ["stock", *(f"ε = {n}" for n in (0, 1, 3, 5))]
    assert {(cell.column, len(cell.measures)) for cell in cells} == {
        (f"infinitebench-kv-official, {session.in_windows(256 * K)}", 500)
    }
    assert {cell.missing for cell in cells} == {None}


def test_the_papers_scores_are_reduced_where_there_is_a_calibration(at_window):
    session = at_window(8192, windows=(8192,), calibration=FOLDER / "calibration.safetensors")
    calibrated = [row.calibration for row in esa_methods.proximities(session).values()]
    assert calibrated == [session.calibration] * 4
    assert {row.calibration for row in esa_methods.heads(session).values()} == {None}  # Tables 6 and 8: in full


@pytest.mark.parametrize("name", ["table-2", "table-3", "table-4", "table-5"])
def test_stock_inside_the_window_is_in_every_quick_table_of_made_tasks(at_window, name):
    cells = table_of("esa", name).cells(at_window(512, scale="quick"))
    inside = [cell for cell in cells if cell.row == INSIDE]
    assert {cell.column for cell in inside if "mean" not in cell.column} >= {
        cell.column for cell in cells if cell.row == "ESA" and "mean" not in cell.column and cell.measures
    }
    assert all(cell.missing or {one.length for one in cell.measures} == {512} for cell in inside)
    assert not [cell for cell in table_of("esa", name).cells(at_window(512)) if cell.row == INSIDE]


@pytest.mark.parametrize("window", [8192, 32_768])
def test_longbench_is_cut_to_32k(at_window, tmp_path, window):
    shutil.copytree(SAMPLES, tmp_path / "data")
    session = at_window(window, windows=PAPERS["esa"].windows, data_dir=tmp_path / "data")
    for name in ("table-1", "table-6", "table-9"):
        asked = figures_of("esa", name, session)
        assert {one.length for one in asked} == {32 * K}
        assert {one.name for one in asked} == set(esa.LONG)
        cells = measured("esa", name, session)
        assert {len({one.name for one in cell.measures}) for cell in cells if cell.row == "mean"} == {16}
    rows = {cell.column.rpartition("x (")[0].rpartition(", ")[0] for cell in measured("esa", "table-6", session)}
    assert rows == {"stock", "individual", "uniform"}
    rows = {cell.column.rpartition("x (")[0].rpartition(", ")[0] for cell in measured("esa", "table-9", session)}
    assert rows == {"stock", "LM-Infinite", "LM-Infinite, top 5", "ESA"}


@pytest.mark.parametrize("name", ["table-6", "table-9"])
def test_tables_of_longbench_name_all_files_that_they_need(at_window, tmp_path, name):
    for folder, place in ((None, "--data-dir"), (tmp_path, str(tmp_path))):
        session = at_window(512, scale="quick", windows=PAPERS["esa"].windows, data_dir=folder)
        (cell,) = (cell for cell in table_of("esa", name).cells(session) if cell.missing is not None)
        assert (cell.row, cell.brief) == ("LongBench", "needs 16 files of `longbench/`")
        files = re.findall(r"`(longbench/[^`]+)`", cell.missing)
        assert files == [TASKS[task].data.name for task in esa.LONG] and len(set(files)) == 16
        assert place in cell.missing and "zai-org/LongBench" in cell.missing


def test_files_of_infinitebench_are_cut_to_200k(at_window, tmp_path, unbuilt):
    shutil.copytree(SAMPLES, tmp_path / "data")
    session = at_window(8192, windows=PAPERS["esa"].windows, data_dir=tmp_path / "data")
    read = [one for one in figures_of("esa", "table-2", session) if one.record is not None]
    assert {one.name for one in read} == {"infinitebench-en-mc", "infinitebench-code-debug"}
    assert {one.length for one in read} == {200 * K}
    means = {cell.column: cell.measures for cell in measured("esa", "table-2", session) if cell.row == "ESA"}
    assert len({one.name for one in means["mean"]}) == 6
    session.max_length = 100 * K  # the made ones have a limit of 256k
    cells = {(cell.row, cell.column): cell for cell in table_of("esa", "table-2").cells(session)}
    assert str(cells["ESA", f"infinitebench-en-mc, {session.in_windows(200 * K)}"].missing).endswith(
        "--max-length 102,400"
    )


def test_recall_is_of_2000_queries_up_to_token_25000(at_window, monkeypatch):
    monkeypatch.setattr("longspan_eval.reproduce.texts.heldout_text", lambda: "word " * 60_000)
    session = at_window(32_768, windows=PAPERS["esa"].windows, calibration=FOLDER / "calibration.safetensors")
    asked = set(figures_of("esa", "figure-2", session))
    assert asked and {(one.length, one.queries, one.top) for one in asked} == {(25_000, 2_000, 2_048)}
    assert {(one.initial, one.local) for one in asked} == {(128, 4096)}  # as at the other window
    # Four prompts would fit the text of 120,001 tokens, the last two of which are what the components are made of.
    (text,) = {one.text for one in asked}
    assert components_from(text) == 70_001 and {one.seed for one in asked} == {0, 25_000}
    assert components_from(Text.of("short", [1] * 1000)) == 500
