"""The papers' parameters and protocols, scaled to a window: at their own windows they are the papers', to the digit."""

from __future__ import annotations

import pytest

from longspan.methods import DCA, ESA, InfLLM, LMInfinite, LongHeads
from longspan_eval.measure import Prompt
from longspan_eval.reproduce import PAPERS, dca, dca_methods, esa, esa_methods, longheads, longheads_methods
from longspan_eval.reproduce.longheads_heads import split_lengths
from longspan_eval.reproduce.measures import Inspected, SplitPrompt, Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperPlan
from longspan_eval.reproduce.texts import PG19_TEST, PG19_VALIDATION, PROOF_PILE

K = 1024


def made(row, kind):
    assert isinstance(row.method, kind)
    return row.method


@pytest.fixture
def at_4096(at_window):
    return at_window(4096, windows=(4096,))


@pytest.fixture
def unbuilt(monkeypatch):
    # Prompts this long take seconds to make, which planning does to see that a length will do.
    monkeypatch.setattr(PaperSession, "unbuilt", lambda *_: None)


def table_of(paper, name):
    (chosen,) = (one for one in PAPERS[paper].tables if one.name == name)
    return chosen


def measured(paper, name, session):
    return [cell for cell in table_of(paper, name).cells(session) if cell.measures]


# LongHeads


def test_longheads_at_its_own_window(at_4096):
    rows = longheads_methods.methods(at_4096)
    own = made(rows["LongHeads"], LongHeads)
    assert (own.chunk_length, own.num_chunks, own.share, own.score, own.local_chunks) == (
        256, 16, "head", "representation", 2,
    )  # fmt: skip
    assert made(rows["LongHeads, k = 8"], LongHeads).num_chunks == 8
    assert made(rows["LongHeads, local_chunks = 1"], LongHeads).local_chunks == 1
    other = made(rows["LM-Infinite"], LMInfinite)
    assert (other.sinks, other.recent, other.cap) == (10, 4096, 4096)
    assert longheads_methods.half(at_4096) == 2048
    assert {
        (made(row, LongHeads).chunk_length, row.method.num_chunks)
        for row in longheads_methods.analysed(at_4096).values()
    } == {(256, 8)}


@pytest.mark.parametrize(("template", "factor"), [(None, 2.0), ("{{ messages }}", 1.0)])
def test_the_factor_of_ntk_is_another_for_chat_models(at_4096, monkeypatch, template, factor):
    monkeypatch.setattr(at_4096.tokenizer, "chat_template", template)
    rows = longheads_methods.methods(at_4096)
    assert rows["NTK"].name == "dynamic-ntk" and rows["NTK"].method.angles.factor == factor
    initial = rows["LongHeads w/ NTK init"].method
    assert initial.prefill == "full" and initial.angles.dynamic and initial.angles.factor == factor


@pytest.mark.parametrize(
    ("name", "expected"),
    [
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
    method = made(longheads_methods.ablations(at_4096)[name], LongHeads)
    assert {key: getattr(method, key) for key in expected} == expected
    method.resolve(4096)  # they fit


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
def test_hits_are_named_by_what_they_are_of(at_4096):
    columns = {cell.column for cell in measured("longheads", "table-3", at_4096)}
    assert {f"hit@{n}, {of}" for n in (1, 5) for of in ("a head", "a layer", "the model")} < columns
    assert (
        sum(len(cell.measures) for cell in measured("longheads", "table-7", at_4096) if cell.row == "stock") == 2 * 800
    )


def test_longheads_reads_longbench_e_where_there_is_one():
    assert len(longheads.LONGBENCH) == 16 and sum(name.startswith("e-") for name in longheads.LONGBENCH) == 13


def test_documents():
    assert (PG19_TEST.documents, PROOF_PILE.documents, PG19_VALIDATION.documents) == (100, 100, None)
    assert "test" in PG19_TEST.folder and "validation" in PG19_VALIDATION.folder


# Dual chunk attention


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
    assert list(dca_methods.methods(at_4096)) == ["stock", "ReRoPE", "PI", "NTK", "YaRN", "dynamic NTK", "DCA"]


# ESA


@pytest.mark.parametrize("window", [8192, 32_768])
def test_esa_keeps_the_papers_numbers_at_both_of_its_windows(at_window, window):
    session = at_window(window, windows=PAPERS["esa"].windows)
    rows = esa_methods.methods(session, 200 * K)
    own, infllm = made(rows["ESA"], ESA), made(rows["InfLLM"], InfLLM)
    assert (own.initial, own.local, own.top_k, own.query_chunk, own.dense) == (128, 4096, 2048, 512, "kept")
    assert own.resolve(window).plain_rows(window) == 6272  # it chooses inside the window too
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


@pytest.mark.usefixtures("unbuilt")
def test_infinitebench_is_of_the_published_sizes_and_has_a_mean(at_window):
    session = at_window(8192, windows=PAPERS["esa"].windows)
    cells = measured("esa", "table-2", session)
    columns = {cell.column.partition(",")[0] for cell in cells}
    assert {f"infinitebench-{name}-official" for name in ("kv", "number", "passkey", "math-find")} < columns
    assert [cell.column for cell in cells if cell.row == "ESA"][-1].startswith("mean")


# All


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("paper", "table", "lengths", "each"),
    [
        ("longheads", "figure-4", [4096 * n for n in range(1, 9)], 50),
        ("longheads", "figure-6", [4096 * n for n in (1, 2, 4, 8, 16, 32)], 50),
        ("longheads", "figure-7", list(range(1000, 50_000, 3000)), 100),
        ("longheads", "table-3", [4096, 8192, 16_384, 32_768], 50),
        ("longheads", "table-5", [4096, 16_384, 32_768, 131_072], 50),
        ("dca", "figure-3", [n * K for n in (4, 8, 12, 16, 32, 64)], 20),
        ("dca", "figure-5", [n * K for n in range(4, 25, 2)], 200),
        ("dca", "figure-7", [n * K for n in (2, 4, 8, 16, 32, 64, 96, 128, 160, 192)], 20),
    ],
)
def test_protocols_at_the_papers_own_window(at_4096, paper, table, lengths, each):
    cells = measured(paper, table, at_4096)
    assert sorted({measure.length for cell in cells for measure in cell.measures}) == lengths
    assert {len(cell.measures) for cell in cells} == {each}
    assert {type(measure) for cell in cells for measure in cell.measures} <= {Prompt, SplitPrompt, Inspected, Timed}


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("paper", "table", "thousands", "windows"),
    [("dca", "table-1", (4, 8, 16, 32, 64), 4096), ("dca", "table-2", (4, 32, 64, 96, 128, 160, 192), 4096)],
)
def test_lengths_of_perplexity(at_window, monkeypatch, paper, table, thousands, windows):
    monkeypatch.setattr("longspan_eval.windows.standard_text", lambda: "word " * 300_000)
    session = at_window(windows, windows=PAPERS[paper].windows, samples=1)
    cells = [cell for cell in table_of(paper, table).cells(session) if cell.row.endswith(": stock")]
    assert [cell.column for cell in cells] == [f"{n * K:,}" for n in thousands]


def test_needles_of_mistral_are_to_192k_at_its_window(at_window, unbuilt):
    session = at_window(32_768, windows=PAPERS["dca"].windows)
    cells = measured("dca", "figure-6", session)
    assert max(one.length for cell in cells for one in cell.measures) == 192 * K
    assert {one.name for cell in cells for one in cell.measures} == {"needle"}
    assert dca.MISTRAL == 32_768


@pytest.mark.parametrize(("window", "tokens"), [(4096, 256), (512, 32), (1000, 62), (8, 1), (4, 1)])
def test_tokens(at_window, window, tokens):
    assert at_window(window).tokens(256, 4096) == tokens


def test_lengths_come_once(at_window):
    assert at_window(8).lengths([1000, 1200, 4096], 4096) == [2, 8]


def test_prompts_follow_scale_and_limit(at_window):
    assert [at_window(512, scale="paper").prompts(50, 4), at_window(512, scale="quick").prompts(50, 4)] == [50, 4]
    assert at_window(512, scale="paper", samples=7).prompts(50, 4) == 7
    assert at_window(512, scale="quick", samples=7).prompts(50, 4) == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scale": "big"}, "paper or quick"),
        ({"scale_to": "model"}, "scaled to auto or paper or window"),
        ({"samples": 0}, "samples"),
        ({"max_length": 0}, "max_length"),
    ],
)
def test_a_session_says_what_is_wrong(at_window, more, said):
    with pytest.raises(ValueError, match=said):
        at_window(512, **more)


def test_a_missing_data_folder_is_named(at_window, tmp_path):
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        at_window(512, data_dir=tmp_path / "nowhere")


def test_keys_change_with_what_a_sample_depends_on(at_window):
    session, other = at_window(512, scale="quick"), at_window(1024, scale="quick")
    table = table_of("longheads", "figure-4")
    keys = set(PaperPlan(table, session).keys[0])
    assert len(keys) == 6 and not keys & set(PaperPlan(table, other).keys[0])
