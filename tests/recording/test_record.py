"""What is recorded is what was chosen, by the scores that decided it, and nothing is computed differently."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.choosing import tokens
from longspan.hf.attach import attachment_of
from longspan_eval.reproduce.ablations import AblatedLongHeads
from support.hf_models import VOCABULARY, WINDOW, make

N = 150
METHODS = {
    "longheads": longspan.LongHeads(chunk_length=4, num_chunks=8),
    "longheads-head": longspan.LongHeads(chunk_length=4, num_chunks=8, share="head", score="bounds"),
    "longheads-lowest": AblatedLongHeads(chunk_length=4, num_chunks=8, pick="lowest"),
    "esa": longspan.ESA(initial=3, local=16, top_k=9, query_chunk=8),
    "esa-group": longspan.ESA(initial=0, local=16, top_k=9, query_chunk=8, share="group", proximity=0),
    "infllm": longspan.InfLLM(initial=3, local=16, block=4, blocks=3, query_chunk=8),
    "lm-infinite": longspan.LMInfinite(sinks=3, recent=20, middle_top_k=4, from_layer=1),
}
SHARING = {"longheads-head": 4, "esa": 1, "infllm": 1, "lm-infinite": 4}


@pytest.fixture(scope="module")
def model():
    return make("llama")


@pytest.fixture(autouse=True)
def as_it_was(request):
    yield
    if "model" in request.fixturenames:
        longspan.restore(request.getfixturevalue("model"))


def ids(batch=1, n=N, seed=0):
    return torch.randint(3, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def best(one):
    """The units with the best scores among those that could be chosen."""
    can = torch.ones(one.scores.shape[-1], dtype=torch.bool)
    for n in range(len(can)):
        a = one.origin + (one.scored_from + n) * one.size
        can[n] = not any(a < high and low < a + one.size for low, high in one.kept)
    scores = one.scores.masked_fill(~can, float("-inf"))
    return scores.topk(one.units.shape[-1]).indices.sort(dim=-1).values + one.scored_from


@pytest.mark.parametrize("name", METHODS)
def test_the_last_query(model, name):
    longspan.extend(model, METHODS[name])
    stock = model(ids()).logits
    with longspan.record(model) as trace:
        out = model(ids()).logits
    assert out.equal(stock)
    choices = trace.at()
    assert [one.layer for one in choices] == ([1] if name == "lm-infinite" else [0, 1]) and len(trace) == len(choices)
    for one in choices:
        assert (one.call, one.row, one.query, one.padding) == (0, 0, N - 1, 0)
        assert one.units.shape[0] == one.scores.shape[0] == SHARING.get(name, 2)
        assert one.kept[-1][1] == N and (one.units.diff(dim=-1) > 0).all()
        if name == "longheads-lowest":
            one.scores.neg_()
        if name.startswith("esa"):  # neighbours share their best score, so ties are common
            values = one.scores.gather(1, one.units - one.scored_from)
            assert values.sort().values.equal(one.scores.gather(1, best(one) - one.scored_from).sort().values)
            assert one.scores.shape[-1] == one.first == N // 8 * 8
        else:
            assert one.units.equal(best(one))
        # What is kept anyway and what was chosen are apart.
        tokens = one.origin + one.units[..., None] * one.size + torch.arange(one.size)
        assert not any(((tokens >= a) & (tokens < b)).any() for a, b in one.kept)


@pytest.mark.parametrize(
    "name",
    ["longheads", "esa", *(pytest.param(n, marks=pytest.mark.long) for n in METHODS if n not in ("longheads", "esa"))],
)
def test_every_query_is_what_each_call_records(model, name):
    """All queries at once are those of a text that arrives token by token, or for pieces, in its pieces."""
    longspan.extend(model, METHODS[name])
    step = 8 if name.startswith(("esa", "infllm")) else 1
    with longspan.record(model, queries="all") as whole:
        model(ids())
    cache = longspan.new_cache(model)
    with longspan.record(model) as parts:
        model(ids()[:, :WINDOW], past_key_values=cache)
        for a in range(WINDOW, N, step):
            model(ids()[:, a : a + step], past_key_values=cache)
    last = [one for one in whole if one.query >= WINDOW]
    expected = [one for one in parts if one.query >= WINDOW]
    assert len(last) == len(expected) > 0
    key = lambda one: (one.layer, one.query)  # noqa: E731
    for one, other in zip(sorted(last, key=key), sorted(expected, key=key), strict=True):
        assert (one.layer, one.first, one.query, one.kept) == (other.layer, other.first, other.query, other.kept)
        assert one.units.equal(other.units) and one.scores.shape == other.scores.shape
        torch.testing.assert_close(one.scores, other.scores, atol=1e-4, rtol=1e-4)
    assert {one.call for one in whole} == {0} and max(one.call for one in parts) == -(-(N - WINDOW) // step)


def test_esa_scores_of_what_is_kept_anyway(model):
    """One query: the score of every token before it is Σ_h q_h · k_h less the middle's best, as the paper has it."""
    longspan.extend(model, longspan.ESA(initial=3, local=16, top_k=9, query_chunk=8, proximity=0))
    seen = {}
    attachment_of(model).observer = lambda layer, q, k, v, padding: seen.setdefault(layer.index, []).append((q, k))
    cache = longspan.new_cache(model)
    model(ids()[:, :-1], past_key_values=cache)
    with longspan.record(model) as trace:
        model(ids()[:, -1:], past_key_values=cache)
    for one in trace.at():
        keys = torch.cat([k for _, k in seen[one.layer]], dim=2)[0, :, : N - 1]
        f = torch.einsum("hgd,hnd->n", seen[one.layer][-1][0][0, :, -1].unflatten(0, (2, 2)), keys)
        torch.testing.assert_close(one.scores[0], f - f[3 : N - 17].max(), atol=1e-4, rtol=1e-4)


def test_rows_of_a_padded_batch(model):
    longspan.extend(model, METHODS["longheads"])
    alone = []
    for n, length in enumerate((N, N - 10)):
        with longspan.record(model) as trace:
            model(ids(seed=n)[:, :length])
        alone.append(trace.at())
    batch = torch.cat([ids(seed=0), torch.cat([ids(n=10), ids(seed=1)[:, : N - 10]], dim=1)])
    mask = torch.ones_like(batch)
    mask[1, :10] = 0
    with longspan.record(model) as trace:
        model(batch, attention_mask=mask)
    for row, (query, padding) in enumerate(((N - 1, 0), (N - 11, 10))):
        for one, other in zip(trace.at(row=row), alone[row], strict=True):
            assert (one.row, one.query, one.padding) == (row, query, padding)
            assert one.units.equal(other.units)


def test_generation_records_each_token(model):
    longspan.extend(model, METHODS["longheads"])
    with longspan.record(model, scores=False) as trace:
        model.generate(ids(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert [one.query for one in trace if one.layer == 0] == [N - 1, N, N + 1, N + 2]
    assert all(one.scores is None for one in trace)
    assert trace.at(N)[0].call == 1 and trace.at()[0].query == N + 2
    with pytest.raises(longspan.LongspanError, match=r"no choice of query 5 in row 0.*149 to 152"):
        trace.at(5)
    with pytest.raises(longspan.LongspanError, match="row 1.*recorded: none"):
        trace.at(row=1)


@pytest.mark.parametrize("queries", ["last", "all"])
@pytest.mark.parametrize("name", ["esa", "infllm"])
def test_query_chunks_that_run_together_are_recorded_to_the_bit(model, name, queries):
    """The last query chunk has two queries, which round otherwise where they go by themselves."""
    longspan.extend(model, METHODS[name])
    text = ids(n=146)
    plain = model(text).logits
    with longspan.record(model, queries=queries, scores=False) as trace:
        out = model(text).logits
    assert out.equal(plain)
    with longspan.record(model, queries=queries) as scored:
        model(text)
    spans = [[(one.layer, one.first, one.query, one.kept) for one in found] for found in (trace, scored)]
    assert spans[0] == spans[1] and len(trace) == (2 if queries == "last" else 22)
    assert all(one.units.equal(other.units) for one, other in zip(trace, scored, strict=True))


def test_two_texts_are_told_apart(model):
    longspan.extend(model, METHODS["longheads"])
    with longspan.record(model) as trace:
        model(ids(seed=0))
        model(ids(seed=1))
    assert [one.call for one in trace.at()] == [1, 1] and [one.call for one in trace.at(call=0)] == [0, 0]
    assert not all(a.units.equal(b.units) for a, b in zip(trace.at(), trace.at(call=0), strict=True))


def test_choices_that_no_score_decided(model):
    longspan.extend(model, AblatedLongHeads(chunk_length=4, num_chunks=8, pick="random"))
    with longspan.record(model) as trace:
        model(ids())
    assert [one.scores for one in trace.at()] == [None, None]
    longspan.extend(model, AblatedLongHeads(chunk_length=4, num_chunks=8, fix_layers=True))
    with longspan.record(model) as trace:
        model(ids())
    first, second = trace.at()
    assert first.units.equal(second.units) and first.scores is not None and second.scores is None


def test_nothing_is_chosen_inside_the_window(model):
    longspan.extend(model, METHODS["longheads"])
    with longspan.record(model) as trace:
        model(ids(n=WINDOW))
    assert len(trace) == 0
    with pytest.raises(longspan.LongspanError, match="inside the window of 64 tokens"):
        trace.at()


def test_it_ends(model):
    longspan.extend(model, METHODS["longheads"])
    attachment = attachment_of(model)
    hooks = attachment.layers[0].module._forward_pre_hooks  # torch has no public list of a module's hooks
    before = set(hooks)
    with pytest.raises(RuntimeError, match="mine"), longspan.record(model) as trace:
        model(ids())
        raise RuntimeError("mine")
    assert attachment.attender.observer is None and len(trace) == 2
    model(ids())
    assert len(trace) == 2
    assert set(hooks) == before


@pytest.mark.parametrize("name", ["longheads", "esa", "infllm"])
def test_it_costs_nothing_when_off(model, name, monkeypatch):
    """No more scores are made, none is copied, and the observer's code is never entered."""
    calls, real = [], tokens.token_scores
    # Scores are counted, by kernel; a selector that made its own, or an observer, would raise.
    monkeypatch.setattr(tokens, "token_scores", lambda *a, **b: calls.append(a) or real(*a, **b))
    monkeypatch.setattr(tokens.TokenSelector, "token_scores", None)
    longspan.extend(model, METHODS[name])
    for kind in ("add", "wants"):
        # A call of it would raise.
        monkeypatch.setattr(longspan.attend.Observer, kind, None)
    model(ids())
    calls.clear()
    attachment_of(model).attender.chooser.many = False  # pieces that run together are scored in their kernel
    model(ids())
    pieces = len(range(WINDOW, N, 8))
    assert len(calls) == (2 * pieces if name == "esa" else 0)


def test_what_cannot_be_recorded(model):
    def fails(words, **kwargs):
        with pytest.raises(longspan.LongspanError, match=words), longspan.record(model, **kwargs):
            pass

    fails("not extended")
    longspan.extend(model, "dca")
    fails("dca keeps keys by their index")
    longspan.extend(model, longspan.LMInfinite())
    fails("middle_top_k")
    longspan.extend(model, METHODS["esa"])
    fails("'last' or 'all', not 'some'", queries="some")
    with longspan.record(model):
        fails("already active")
    with longspan.record(model):
        pass
    with pytest.raises(longspan.LongspanError, match="is a name"), longspan.record("model"):
        pass
