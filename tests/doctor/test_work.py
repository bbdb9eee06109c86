"""The counts that the doctor extrapolates by: those of the oracle, at lengths where it can be asked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from longspan.doctor.memory import index_bytes
from longspan.doctor.work import MOST, Counter, LayerShape, refuse_longer
from longspan.errors import LongspanError
from longspan.methods import METHODS, LMInfinite
from longspan.selection import Choosing
from longspan.selection.cost import UnitCost
from longspan.selection.top_k_tokens import TopKTokens
from support.cases import WINDOW, all_cases, build, make_qkv

N = 83
LAYER = LayerShape(number=4, heads=4, kv_heads=2, key_dim=16, value_dim=8, rotations=1, itemsize=4)


def counter(case, layers=(LAYER,), **options):
    return Counter(case.method, case.window, layers, **options)


@pytest.mark.parametrize("case", all_cases())
def test_keys_of_a_query_are_those_that_the_oracle_keeps(case, rope):
    i = torch.arange(N)
    ours = counter(case).keys(i, first=0, stop=N, layer=4)
    if case.selects:
        q, k, v = make_qkv(N)
        keep = case.laid(case.stated(q, k, v, rope, 0.25))[0][0]
    else:
        keep = case.dense(N)[0][None]
    assert (keep.sum(dim=-1) == ours).all()


@pytest.mark.parametrize("case", all_cases())
def test_a_token_alone_is_a_piece_of_one(case):
    for at in (0, 5, WINDOW - 1, WINDOW, 40, N):
        i, counts = torch.tensor([at]), counter(case)
        assert counts.keys(i, first=at, stop=at + 1, alone=True) == counts.keys(i, first=at, stop=at + 1)


def candidates(method, selection, at):
    """How many units a query at ``at`` chooses from, as the selection itself says it."""
    if method.name == "longheads":
        return int(selection.stops(torch.tensor([at]))) - int(selection.first)
    if method.name == "lm-infinite":
        return selection.scored(at)
    if method.name == "esa":
        return int(selection.stops(torch.tensor([at]))) - selection.initial
    return selection.candidates(at)


@pytest.mark.parametrize("case", all_cases(selecting=True))
def test_units_are_the_candidates_of_the_selection(case):
    selection, counts = case.method.selection(case.window).alone(), counter(case)
    assert isinstance(selection, Choosing)
    for at in range(selection.first_query, N):
        ours = int(counts.units(torch.tensor([at]), first=at, alone=True, layer=4))
        assert ours == max(candidates(case.method, selection, at), 0)
    assert int(counts.units(torch.tensor([0]), first=0)) == 0


@pytest.mark.parametrize("name", METHODS)
def test_work_of_pieces_is_that_of_the_whole(name):
    counts = counter(build(name, {}, 64), weights=10)
    whole = counts.call(0, 320)
    for prefill_chunk in (64, 320):
        parts = counts.prompt(320, prefill_chunk)
        assert parts.calls == 320 // prefill_chunk and parts.weights == whole.weights == 3200
        assert parts.attended == pytest.approx(whole.attended) and parts.scored == pytest.approx(whole.scored)


def test_full_attention_by_hand():
    counts = counter(build("full", {}, 64), (LAYER, LAYER), weights=100, itemsize=2)
    call = counts.call(10, 13)
    assert (call.calls, call.weights, call.scored) == (1, 300, 0)
    assert call.attended == 2 * 4 * (16 + 8) * (11 + 12 + 13)
    token = counts.token(99)
    assert (token.calls, token.weights, token.scored) == (1, 200, 0)
    assert token.attended == 2 * 2 * (16 + 8) * 4 * 100


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name]().selects])
def test_methods_that_choose_grow_by_their_scores_alone(name):
    counts = counter(build(name, {}, 64))
    near, far = counts.token(64 * 10), counts.token(64 * 40)
    assert far.attended == near.attended and 3 < far.scored / near.scored < 5


def test_layers_that_keep_everything_and_layers_that_do_not_choose():
    everything = LayerShape(0, 4, 2, 16, 8, 1, 4, attached=False)
    case = build("streaming-llm", {}, 64)
    assert counter(case, (everything,)).token(999).attended == 1000 * 2 * (16 + 8) * 4
    assert counter(case).token(999).attended == 64 * 2 * (16 + 8) * 4
    middle = build("lm-infinite", {"middle_top_k": 5, "from_layer": 4}, 64)
    early = LayerShape(3, 4, 2, 16, 8, 1, 4)
    assert counter(middle, (early,)).token(999).scored == 0
    assert counter(middle).token(999).scored > 0
    both = counter(middle, (early, LAYER)).token(999)
    assert both.attended == sum(counter(middle, (one,)).token(999).attended for one in (early, LAYER))


def test_a_selection_that_is_not_one_of_ours_states_its_own_cost():
    """What a method of somebody else states is counted; without a statement scores are those of the stored keys."""

    @dataclass(frozen=True)
    class Summed(TopKTokens):
        def unit_cost(self, layer, reduced):
            return UnitCost(stored=3, read=5, products=7)

    @dataclass(frozen=True)
    class Own(LMInfinite):
        def selection(self, window):
            return Summed(**vars(super().selection(window)))

    theirs, stock = Own(middle_top_k=5, from_layer=0), build("lm-infinite", {"middle_top_k": 5, "from_layer": 0}, 64)
    theirs = theirs.resolve(64)
    at = theirs.selection(64).scored(999)
    assert Counter(theirs, 64, (LAYER,)).token(999).scored == 5 * at
    assert index_bytes(theirs, LAYER, 1000, 64) == 3000
    assert counter(stock).token(999).scored == at * LAYER.kv_heads * LAYER.key_dim * LAYER.itemsize
    assert index_bytes(stock.method, LAYER, 1000, 64) == 0


def test_a_length_that_is_not_counted():
    refuse_longer(MOST)
    with pytest.raises(LongspanError, match="length is at most 16,777,216 tokens here"):
        refuse_longer(MOST + 1)
    with pytest.raises(LongspanError, match="length must be an integer"):
        refuse_longer("200k")
