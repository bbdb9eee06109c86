"""LongHeads' protocols: at a window of 4,096 they are the paper's, to the digit."""

from __future__ import annotations

import pytest

from longspan.methods import LMInfinite, LongHeads
from longspan_eval.reproduce import longheads, longheads_methods
from longspan_eval.reproduce.longheads_heads import split_lengths
from longspan_eval.reproduce.texts import PG19_TEST, PG19_VALIDATION, PROOF_PILE
from support.tables import made, measured


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
