"""The papers' parameters, scaled to a window: at their own window they are the papers', to the digit."""

from __future__ import annotations

import pytest

from longspan.methods import DCA, ESA, InfLLM, LMInfinite, LongHeads
from longspan_eval.measure import Prompt
from longspan_eval.reproduce import PAPERS, dca, esa, longheads, longheads_methods
from longspan_eval.reproduce.measures import Inspected, SplitPrompt, Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperPlan


def made(row, kind):
    assert isinstance(row.method, kind)
    return row.method


@pytest.fixture
def at_4096(at_window):
    return at_window(4096)


def test_longheads_at_its_own_window(at_4096):
    rows = longheads_methods.methods(at_4096)
    own = made(rows["LongHeads"], LongHeads)
    assert (own.chunk_length, own.num_chunks, own.share, own.score, own.local_chunks) == (
        256, 16, "head", "representation", 2,
    )  # fmt: skip
    assert made(rows["LongHeads, half the attention window"], LongHeads).num_chunks == 8
    other = made(rows["LM-Infinite"], LMInfinite)
    assert (other.sinks, other.recent, other.cap) == (10, 4096, 4096)
    ntk = made(rows["LongHeads w/ NTK init"], LongHeads)
    assert ntk.prefill == "full" and ntk.angles.dynamic and ntk.angles.factor == 2.0
    assert longheads_methods.half(at_4096) == 2048
    assert {
        (made(row, LongHeads).chunk_length, row.method.num_chunks)
        for row in longheads_methods.analysed(at_4096).values()
    } == {(256, 8)}


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


def test_longheads_lengths(at_window):
    lengths = longheads.needle_lengths(at_window(4096))
    assert (lengths[0], lengths[1], lengths[-1], len(lengths)) == (1000, 4000, 49_000, 17)
    assert longheads.needle_lengths(at_window(512))[:2] == [125, 500]


def test_dca_at_its_own_window(at_4096):
    method = made(dca.method(at_4096), DCA)
    assert (method.chunk_size, method.local_window, method.window) == (3072, 1024, 4096)
    assert [made(dca.method(at_4096, more), DCA).parts for more in dca.PARTS.values()] == [
        "intra",
        "intra+inter",
        "all",
    ]


@pytest.mark.parametrize("window", [8192, 32_768, 512, 1000, 131_072])
def test_esa_and_methods_of_equal_token_counts(at_window, window):
    session = at_window(window)
    rows = esa.methods(session)
    own = made(rows["ESA"], ESA)
    if window == 8192:
        assert (own.initial, own.local, own.top_k, own.query_chunk) == (128, 4096, 2048, 512)
        assert esa.kept(own, window) == 6272
    selecting = ("StreamingLLM", "LM-Infinite", "InfLLM", "ESA")
    assert len({esa.kept(rows[name].method, window) for name in selecting}) == 1
    assert list(rows)[:3] == ["stock", "NTK", "YaRN"]  # full attention, as the paper has it
    infllm = made(rows["InfLLM"], InfLLM)
    if window == 8192:
        assert (infllm.block, infllm.blocks) == (128, 16)


def test_a_method_that_keeps_everything_has_no_count():
    with pytest.raises(ValueError, match="dca keeps no fixed number"):
        esa.kept(DCA(), 512)


def test_proximities(at_window):
    rows = esa.proximities(at_window(8192))
    assert [made(row, ESA).proximity for row in rows.values()] == [0, 1, 3, 5]


@pytest.mark.parametrize(
    ("paper", "table", "lengths", "each"),
    [
        ("longheads", "passkey", [4096 * n for n in range(1, 9)], 50),
        ("longheads", "needle", list(range(1000, 50_000, 3000)), 100),
        ("longheads", "analysis", [4096, 8192, 16_384, 32_768], 50),
        ("longheads", "efficiency", [4096, 8192, 16_384, 32_768, 131_072], 10),
        ("dca", "passkey", [4096 * n for n in range(1, 6)], 200),
        ("dca", "passkey-far", [16_384, 32_768, 65_536, 98_304, 131_072, 196_608], 20),
        ("dca", "efficiency", [4096 * n for n in (1, 2, 4, 8, 16)], 5),
    ],
)
def test_protocols_at_the_papers_own_window(at_4096, monkeypatch, paper, table, lengths, each):
    # Prompts this long take seconds to make, which planning does to see that a length will do.
    monkeypatch.setattr(PaperSession, "unbuilt", lambda *_: None)
    (chosen,) = (one for one in PAPERS[paper].tables if one.name == table)
    cells = [cell for cell in chosen.cells(at_4096) if cell.measures]
    assert sorted({measure.length for cell in cells for measure in cell.measures}) == lengths
    assert {len(cell.measures) for cell in cells} == {each}
    assert {type(measure) for cell in cells for measure in cell.measures} <= {Prompt, SplitPrompt, Inspected, Timed}


def test_needles_are_ten_a_depth(at_4096, monkeypatch):
    monkeypatch.setattr(PaperSession, "unbuilt", lambda *_: None)
    (chosen,) = (one for one in PAPERS["longheads"].tables if one.name == "needle")
    depths = [measure.depth for measure in chosen.cells(at_4096)[0].measures]
    assert {depths.count(depth) for depth in depths} == {10} and min(depths) == 0 and max(depths) == 1
    assert len({measure.seed for measure in chosen.cells(at_4096)[0].measures}) == 100


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
    [({"scale": "big"}, "paper or quick"), ({"samples": 0}, "samples"), ({"max_length": 0}, "max_length")],
)
def test_a_session_says_what_is_wrong(at_window, more, said):
    with pytest.raises(ValueError, match=said):
        at_window(512, **more)


def test_a_missing_data_folder_is_named(at_window, tmp_path):
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        at_window(512, data_dir=tmp_path / "nowhere")


def test_keys_change_with_what_a_sample_depends_on(at_window):
    session, other = at_window(512, scale="quick"), at_window(1024, scale="quick")
    table = PAPERS["esa"].tables[0]
    keys = set(PaperPlan(table, session).keys[0])
    assert len(keys) == 4 and not keys & set(PaperPlan(table, other).keys[0])
