"""The ablations of papers: rows of tables, written as any row, and no parameters of the methods themselves."""

from __future__ import annotations

import pytest

from longspan.choosing.chunks import Chunks
from longspan.choosing.tokens import Tokens
from longspan.errors import LongspanError
from longspan.methods import DCA, ESA, METHODS, LongHeads
from longspan_eval import spec as specs
from longspan_eval.reproduce.ablations import ABLATIONS, AblatedDCA, AblatedESA, AblatedLongHeads, parse_spec


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("dca:parts=intra", AblatedDCA),
        ("longheads:first_chunk=false,pick=random,seed=3", AblatedLongHeads),
        ("longheads:share=layer,fix_layers=true", AblatedLongHeads),
        ("longheads:prefill=full,angles=dynamic-ntk,factor=2", AblatedLongHeads),
        ("esa:combine=max", AblatedESA),
    ],
)
def test_rows_of_ablations(spec, kind):
    row = parse_spec(spec)
    assert type(row.method) is kind and row.label == spec and row.name == spec.partition(":")[0]
    row.method.resolve(512)
    with pytest.raises(LongspanError, match="has no parameter"):
        specs.parse_spec(spec)


@pytest.mark.parametrize("spec", ["stock", "dca:chunk_size=100", "infllm", "longheads:score=bounds", "esa:proximity=3"])
def test_other_rows_are_what_they_are(spec):
    ours, theirs = parse_spec(spec), specs.parse_spec(spec)
    assert (ours.label, ours.name) == (theirs.label, theirs.name)
    if theirs.method is not None:
        ours, theirs = ours.method.resolve(512), theirs.method.resolve(512)
        assert (ours.selection(512), ours.positions(512)) == (theirs.selection(512), theirs.positions(512))


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        (AblatedDCA, {"parts": "inter"}, "parts is one of intra, intra\\+inter, all"),
        (AblatedDCA, {"chunk_size": 0}, "chunk_size ≥ 1"),
        (AblatedLongHeads, {"pick": "worst"}, "pick is one of best, lowest, random"),
        (AblatedLongHeads, {"prefill": "none"}, "prefill is one of select, full"),
        (AblatedLongHeads, {"prefill": "full", "remap": "far"}, "prefill='full' is for remap='slots'"),
        (AblatedLongHeads, {"chunk_length": 0}, "chunk_length ≥ 1"),
        (AblatedESA, {"combine": "mean"}, "combine is one of sum, max"),
        (AblatedESA, {"top_k": 0}, "top_k ≥ 1"),
    ],
)
def test_ablations_that_cannot_be(kind, options, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**options)


def test_without_an_ablation_they_are_the_methods():
    assert type(AblatedLongHeads().resolve(64).selection(64)) is Chunks
    assert type(AblatedESA().resolve(64).selection(64)) is Tokens
    assert type(AblatedESA(combine="max", share="head").resolve(64).selection(64)) is Tokens  # one head has one score
    assert all(issubclass(kind, METHODS[name]) and kind.name == name for name, kind in ABLATIONS.items())
    assert {DCA, LongHeads, ESA} <= set(METHODS.values())


@pytest.mark.parametrize(("parts", "exact"), [("all", 64), ("intra+inter", 48), ("intra", 48)])
def test_exact_queries_of_parts_of_dca(parts, exact):
    assert AblatedDCA(parts=parts).resolve(64).exact_queries(64, 256) == exact
