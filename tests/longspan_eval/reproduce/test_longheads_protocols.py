"""LongHeads' protocols: at a window of 4,096 they are the paper's, to the digit."""

from __future__ import annotations

import shutil

import pytest

from longspan.methods import LMInfinite, LongHeads
from longspan_eval.datafile import SAMPLES
from longspan_eval.reproduce import longheads, longheads_methods
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.longheads_heads import split_lengths
from longspan_eval.reproduce.longheads_takes import rows as takes_rows
from longspan_eval.reproduce.texts import PG19_TEST, PROOF_PILE
from support.tables import figures_of, made, measured, table_of


def test_longheads_at_its_own_window(at_4096):
    rows = longheads_methods.methods(at_4096)
    own = made(rows["LongHeads"], LongHeads).resolve(4096)
    assert (own.chunk_length, own.num_chunks, own.share, own.score, own.local_chunks) == (
        256, 16, "head", "representation", 2,
    )  # fmt: skip
    assert made(rows["LongHeads, k = 8"], LongHeads).num_chunks == 8
    assert made(rows["LongHeads, Eq 3"], LongHeads).local_chunks == 1
    assert made(rows["LongHeads w/ NTK init, Eq 3"], LongHeads).local_chunks == 1
    other = made(rows["LM-Infinite"], LMInfinite)
    assert (other.sinks, other.recent, other.cap) == (10, 4096, 4096)
    assert longheads_methods.half(at_4096) == 2048
    assert (other.resolve(4096).recent, other.resolve(4096).cap) == (4096, 4096)
    halved = [made(row, LongHeads) for row in longheads_methods.halved(at_4096).values()]
    assert {(one.chunk_length, one.num_chunks, one.plain_queries(4096)) for one in halved} == {(256, 8, 2048)}
    assert [one.resolve(2048).local_chunks for one in halved] == [2, 1, 2]


@pytest.mark.parametrize("window", [4096, 512, 510, 1500, 65_535])
def test_chunks_fit_whatever_the_window_is(at_window, window):
    session = at_window(window, windows=(4096,))
    for row in [*longheads_methods.methods(session).values(), *longheads_methods.ablations(session).values()]:
        if row.method is not None:
            row.method.resolve(window)
    half = longheads_methods.half(session)
    for row in longheads_methods.halved(session).values():  # in Table 3 their window is half of the model's
        chosen = made(row, LongHeads).resolve(half)
        assert half - 8 <= chosen.num_chunks * chosen.chunk_length <= half


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("name", ["table-3", "table-5", "table-7", "figure-6"])
def test_an_attention_window_beyond_the_models_is_not_run(at_window, name):
    """The paper's 2,048 tokens on a model of 512."""
    session = at_window(512, windows=(4096,), scale_to="paper")
    cells = [cell for cell in table_of("longheads", name).cells(session) if cell.row.startswith("LongHeads")]
    assert cells and not [cell for cell in cells if cell.measures]
    assert any("num_chunks=8, chunk_length=256, window=512" in (cell.missing or "") for cell in cells)


@pytest.mark.parametrize(("template", "factor"), [(None, 2.0), ("{{ messages }}", 1.0)])
def test_the_factor_of_ntk_is_another_for_chat_models(at_4096, monkeypatch, template, factor):
    monkeypatch.setattr(at_4096.tokenizer, "chat_template", template)
    rows = longheads_methods.methods(at_4096)
    assert rows["NTK"].name == "dynamic-ntk" and rows["NTK"].method.angles.factor == factor
    initial = rows["LongHeads w/ NTK init"].method
    assert initial.prefill == "full" and initial.angles.dynamic and initial.angles.factor == factor
    for name in ("table-1", "figure-4", "figure-7", "table-2"):
        assert f"NTK: dynamic, factor {factor:.1f}, as the model is a" in table_of("longheads", name).protocol(at_4096)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("the method, Eq 3", {"pick": "best", "first_chunk": True, "local_chunks": 1}),
        ("random chunks", {"pick": "random", "first_chunk": False, "local_chunks": 1}),
        ("random chunks, first and last kept", {"pick": "random", "first_chunk": True, "local_chunks": 2}),
        ("the lowest-scored", {"pick": "lowest"}),
        ("without the first chunk", {"first_chunk": False, "pick": "best"}),
        ("heads fixed", {"share": "layer", "fix_layers": False}),
        ("layers fixed", {"share": "head", "fix_layers": True}),
        ("heads and layers fixed", {"share": "layer", "fix_layers": True}),
        ("k = 4", {"num_chunks": 4, "chunk_length": 256}),
        ("k = 8", {"num_chunks": 8, "chunk_length": 256}),
        ("l = 128", {"num_chunks": 16, "chunk_length": 128}),
        ("l = 512", {"num_chunks": 8, "chunk_length": 512}),
    ],
)
def test_longheads_ablations(at_4096, name, expected):
    method = made(longheads_methods.ablations(at_4096)[name], LongHeads).resolve(4096)
    assert {key: getattr(method, key) for key in expected} == expected


def test_longheads_lengths(at_window, at_4096):
    lengths = longheads.depth_lengths(at_4096)
    assert (lengths[0], lengths[1], lengths[-1], len(lengths)) == (1000, 4000, 49_000, 17)
    assert longheads.depth_lengths(at_window(512))[:2] == [125, 500]
    assert split_lengths(at_4096) == [4096 * n for n in range(1, 9)]


@pytest.mark.usefixtures("unbuilt")
def test_longheads_depths_are_of_the_pass_key(at_4096):
    (first, *_) = measured("longheads", "figure-7", at_4096)
    depths = [measure.depth for measure in first.measures]
    assert {measure.name for measure in first.measures} == {"passkey"}  # not the needle of San Francisco
    assert {depths.count(depth) for depth in depths} == {10} and min(depths) == 0 and max(depths) == 1
    assert len({measure.seed for measure in first.measures}) == 100


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("name", ["table-3", "table-7"])
def test_heads_are_looked_at_in_the_papers_noise(at_4096, name):
    tasks = {one.task.name for cell in measured("longheads", name, at_4096) for one in cell.measures}
    assert tasks == {"passkey"}


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("name", ["figure-4", "figure-7"])
def test_quick_tables_have_the_row_that_their_published_figures_are_of(at_window, name):
    rows = {cell.row for cell in measured("longheads", name, at_window(512, scale="quick"))}
    assert {"stock", "NTK", "LM-Infinite", "LongHeads"} < rows


@pytest.mark.usefixtures("unbuilt")
def test_hits_are_named_by_what_they_are_of(at_4096):
    columns = {cell.column for cell in measured("longheads", "table-3", at_4096)}
    assert {f"hit@{n}, {of}" for n in (1, 5) for of in ("a head", "a layer", "the model")} < columns
    assert (
        sum(len(cell.measures) for cell in measured("longheads", "table-7", at_4096) if cell.row == "stock") == 2 * 800
    )


def test_longheads_reads_longbench_e_where_there_is_one():
    assert len(longheads.LONGBENCH) == 16 and sum(name.startswith("e-") for name in longheads.LONGBENCH) == 13


@pytest.mark.usefixtures("unbuilt")
def test_longheads_rows(at_4096):
    paper = {"stock", "NTK", "LM-Infinite", "LongHeads"}
    figure_4 = {cell.row for cell in measured("longheads", "figure-4", at_4096)}
    assert paper | {"LongHeads, Eq 3"} < figure_4  # Eq 3 to the letter, beside the code's 2
    assert {"LongHeads", "LongHeads w/ NTK init"} < set(longheads_methods.methods(at_4096))
    timed = {cell.row.rpartition(",")[0]: cell.measures[0] for cell in measured("longheads", "table-5", at_4096)}
    assert (timed["stock, eager, 1x (4"].implementation, timed["stock, flash, 1x (4"].implementation) == (
        "eager",
        "sdpa",
    )
    assert "LM-Infinite, 1x (4" in timed
    far = {cell.row for cell in measured("longheads", "figure-6", at_4096)}
    assert far == {"stock", *longheads_methods.halved(at_4096)}  # at the paper's attention window of 2k


def test_what_the_heads_of_llama_hold_is_counted_and_not_copied(at_4096):
    first, second, by_head, by_group = table_of("longheads", "section-4.1").cells(at_4096)
    assert first.row.startswith("Llama-2-7B") and first.figure.value == 16 * 256 * 32 * 32  # the paper prints 512k
    assert second.figure.value == first.figure.value
    config = at_4096.model.config
    assert by_head.figure.value == 16 * 256 * config.num_attention_heads * config.num_hidden_layers
    assert by_group.figure.value == 16 * 256 * config.num_key_value_heads * config.num_hidden_layers


def test_perplexity_is_of_test_documents(at_4096, monkeypatch):
    monkeypatch.setattr("longspan_eval.windows.heldout_text", lambda: "word " * 40_000)
    at_4096.samples = 1
    cells = table_of("longheads", "table-1").cells(at_4096)
    assert {cell.brief for cell in cells if cell.missing} == {
        f"needs `{one.folder}`" for one in (PG19_TEST, PROOF_PILE)
    }
    rows = {cell.row.partition(": ")[2] for cell in cells if cell.measures}
    assert {"stock", "NTK", "LM-Infinite", "LongHeads, k = 8"} < rows


def test_ablations_are_of_longbenchs_mean_where_it_is_there(at_4096, tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    at_4096.data_dir = tmp_path / "data"
    cells = measured("longheads", "table-4", at_4096)
    assert {cell.column for cell in cells} == {"mean"}
    assert [cell.row for cell in cells] == [
        f"{name}, 4x (16,384)" for name in ("stock", *longheads_methods.ablations(at_4096))
    ]
    for cell in cells:
        assert {one.task.name for one in cell.measures} == {f"longbench-{name}" for name in longheads.LONGBENCH}


def test_ablations_name_the_files_and_rows_that_their_means_lack(at_4096, tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    (tmp_path / "data" / "longbench" / "qmsum.jsonl").unlink()
    at_4096.data_dir = tmp_path / "data"
    cells = table_of("longheads", "table-4").cells(at_4096)
    assert {cell.column for cell in cells} == {"mean of 15 of 16"}
    assert [(cell.row, cell.brief) for cell in cells if not cell.measures] == [
        ("longbench-qmsum", "needs `longbench/qmsum.jsonl`")
    ]
    at_4096.max_length = 8192
    *settings, absent = table_of("longheads", "table-4").cells(at_4096)
    assert [cell.row for cell in settings] == [
        f"{name}, 4x (16,384)" for name in ("stock", *longheads_methods.ablations(at_4096))
    ]
    assert {cell.missing for cell in settings} == {"16,384 tokens are more than --max-length 8,192"}
    assert "qmsum" in absent.brief


def test_ablations_have_every_row_where_a_printed_length_is_the_models_window(at_window, unbuilt):
    session = at_window(16_384, scale="quick", scale_to="paper", samples=1, windows=(4096,))
    cells = measured("longheads", "table-4", session)
    assert {cell.column for cell in cells} == {"passkey, 1x (16,384)", "perplexity, 1x (16,384)"}
    rows = {"stock", INSIDE, *longheads_methods.ablations(session)}
    for column in ("passkey, 1x (16,384)", "perplexity, 1x (16,384)"):
        assert {cell.row for cell in cells if cell.column == column} == rows


@pytest.mark.parametrize(("window", "recent"), [(8192, 4096), (2048, 2048)])
def test_lm_infinite_keeps_4096_tokens_as_printed(at_window, window, recent):
    method = longheads_methods.lm_infinite(at_window(window, scale_to="paper")).method
    assert (method.sinks, method.recent, method.cap) == (10, recent, window)


def test_perplexity_slides_by_256_and_scores_what_is_new(at_4096, monkeypatch):
    monkeypatch.setattr("longspan_eval.windows.heldout_text", lambda: "word " * 40_000)
    asked = figures_of("longheads", "table-1", at_4096)
    assert {(one.record["stride"], one.record["mode"]) for one in asked} == {(256, "new")}
    assert {one.length for one in asked} == {4096, 4 * 4096, 8 * 4096} | {2 * 4096}


def test_longbench_is_cut_to_16k_and_32k(at_4096, tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "data")
    at_4096.data_dir = tmp_path / "data"
    assert {one.length for one in figures_of("longheads", "table-2", at_4096)} == {16_384, 32_768}
    assert {one.length for one in figures_of("longheads", "table-4", at_4096)} == {16_384}
    briefs = [cell.brief for cell in table_of("longheads", "table-2").cells(at_4096) if "w/ PI" in cell.row]
    assert briefs == ["needs a model fine-tuned with PI"]  # which the paper's Table 1 has not
    assert not [cell for cell in table_of("longheads", "table-1").cells(at_4096) if "PI" in cell.row]


def test_seconds_are_of_100_tokens_and_of_the_window_that_misses_some_at_4k(at_4096):
    asked = figures_of("longheads", "table-5", at_4096)
    assert {one.tokens for one in asked} == {100}
    rows = takes_rows(at_4096)
    assert {name: row[0].method.num_chunks for name, row in rows.items() if "LongHeads" in name} == {
        "LongHeads": 16, "LongHeads, Eq 3": 16, "LongHeads, k = 8": 8, "LongHeads, k = 8, Eq 3": 8,
        "LongHeads, k = 8, offloaded": 8,
    }  # fmt: skip
    assert rows["LongHeads, k = 8"][0].method.plain_queries(4096) == 2048  # at 4k it is not stock


def test_heads_look_at_five_reports_a_length(at_4096, tmp_path, monkeypatch, unbuilt):
    monkeypatch.setattr("longspan_eval.reproduce.longheads_heads.read_records", lambda *_: [{"context": ""}] * 6)
    monkeypatch.setattr("longspan_eval.reproduce.longheads_heads.encode", lambda *_: [5] * 33_000)
    (tmp_path / "longbench").mkdir()
    (tmp_path / "longbench" / "gov_report.jsonl").write_text("")
    at_4096.data_dir = tmp_path
    cells = [cell for cell in measured("longheads", "table-3", at_4096) if "of a report" in cell.row]
    assert {len(cell.measures) for cell in cells} == {5} and {one.window for one in cells[0].measures} == {2048}
    assert {one.length for cell in cells for one in cell.measures} == {4096, 8192, 16_384, 32_768}
