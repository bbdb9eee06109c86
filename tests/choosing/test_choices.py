"""What selecting methods choose is what their papers say, and it does not depend on how the text arrives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import longspan
from longspan import oracle as exact
from longspan.attend import Attender, ForwardState
from longspan.calibration import Projection
from longspan.choosing.chunks import Chunks, ChunkSelector
from longspan.errors import CalibrationError
from longspan.kernels.topk import topk
from longspan.memory import KVStore
from longspan.methods import METHODS, Full, LongHeads
from longspan.oracle.choices import mask_of_query_chunks, query_chunks_of
from longspan.rope import PI, Angles, DynamicNTK, Rope, Table
from longspan_eval.reproduce.ablations import ABLATIONS, AblatedChunks, AblatedLongHeads
from support.cases import HEAD, all_cases, assert_same, build, in_pieces, in_turn, inv_freq, make_qkv, recorded
from support.choices import SCALE, N, assert_oracle_chooses, assert_tiles, calibration
from support.hf_models import make

GOLDEN = Path(__file__).parents[1] / "golden" / "longheads_chunks.safetensors"
SCORED = [c for c in all_cases(windows=(24, 7), selecting=True) if getattr(c.values[0].method, "pick", "") != "random"]


@pytest.mark.parametrize(("case", "kv_heads"), in_turn(SCORED, {"mha": (4,), "gqa": (2,), "mqa": (1,)}, every=2))
def test_choices_equal_the_oracle(case, kv_heads, rope):
    assert_oracle_chooses(case, kv_heads, rope)


@pytest.mark.parametrize(
    "options", [{"score": s} for s in ("representation", "submeans", "bounds", "token_max")] + [{}]
)
def test_choices_equal_the_oracle_in_every_layout(options, any_rope):
    case = (
        build("longheads", {"chunk_length": 3, **options}) if options else build("esa", {"query_chunk": 4, "local": 6})
    )
    q, k, v = make_qkv(N)
    chosen = recorded(case, "auto", q, k, v, any_rope, scale=SCALE)
    assert torch.equal(chosen, case.stated(q, k, v, any_rope, SCALE))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("name", "options"), [("esa", {"query_chunk": 4}), ("longheads", {"chunk_length": 3, "score": "token_max"})]
)
def test_reduced_choices_are_those_of_reduced_vectors(name, options, kv_heads, any_rope):
    """θ acts on the channels in the layer's own order, whatever order keys are stored in."""
    case, given = build(name, options), calibration(5, kv_heads * HEAD, kv_heads)
    q, k, v = make_qkv(N, batch=2, kv_heads=kv_heads)
    ours = recorded(case, "auto", q, k, v, any_rope, scale=SCALE, calibration=given)
    summed = q.unflatten(1, (kv_heads, -1)).sum(dim=2)
    if name == "esa":
        maps, (fq, fk) = given.layers[0], (x.transpose(1, 2).flatten(2) for x in (summed, k))
        scores = (fq @ maps.theta_q.double().mT) @ (fk @ maps.theta_k.double().mT).mT
        sizes = {name: getattr(case.method, name) for name in ("initial", "local", "top_k", "proximity")}
        pieces = [(a, z) for a, z in query_chunks_of(case.method.selection(24), N) if a >= 24]
        chosen = mask_of_query_chunks(
            exact.topk_tokens(scores[:, None].expand(-1, 4, -1, -1), pieces, **sizes), pieces, N
        )
    else:
        maps = given.heads[0]
        scores = (summed @ maps.theta_q.double().mT) @ (k @ maps.theta_k.double().mT).mT
        scores = scores[..., : N // 3 * 3].unflatten(-1, (-1, 3)).amax(dim=-1).repeat_interleave(4 // kv_heads, dim=1)
        sizes = {"dense_queries": case.window, "length": 3, "count": case.method.num_chunks, "local": 2}
        chosen = exact.marked(exact.topk_chunks(scores, **sizes), N, 3)
    assert torch.equal(ours, chosen)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("tie", [0.0, 0.25])
def test_ties_for_the_last_places(last, tie):
    """Against a sort by hand, over scores with many ties."""
    scores = torch.randint(6, (200, 17), generator=torch.Generator().manual_seed(0)).float()
    for row, own in zip(scores, topk(scores, 5, tie=tie, last=last).tolist(), strict=True):
        slack = tie * row.max()
        least = row.sort(descending=True).values[4]
        level = torch.where(row > least + slack, 2, torch.where(row >= least - slack, 1, 0)).tolist()
        place = [n if last else -n for n in range(17)]
        assert own == sorted(sorted(range(17), key=lambda n: (level[n], place[n]), reverse=True)[:5])


def test_only_ties_are_decided_by_place():
    """However many chunks there are, a score that is truly better wins; equal ones go to the later chunks."""
    chunks, rows = Chunks(2, 4, 1, first=False), torch.tensor([9_000])
    scores = torch.linspace(0, 0.5, 4_000)[None, None, None].clone()
    scores[..., 7], scores[..., 11], scores[..., 3_999] = 1.0, 0.9999, 0.9998
    assert chunks.choose(scores, rows).flatten().tolist() == [7, 11, 3_999]
    scores[..., 3_000:3_010] = 1.0 - torch.rand(10) * 2e-7
    assert chunks.choose(scores, rows).flatten().tolist() == [3_007, 3_008, 3_009]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", SCORED[:4] + SCORED[-4:])
def test_choices_in_reduced_dtypes_are_as_good(case, dtype, rope):
    """Near ties may fall otherwise, so scores are compared: what was chosen is worth what the best is."""
    q, k, v = make_qkv(N, dtype=dtype)
    keep, _ = case.laid(recorded(case, "auto", q, k, v, rope, scale=SCALE))
    best, _ = case.laid(case.stated(q, k, v, case.rope(rope, N), SCALE))
    assert (keep & best).sum() > 0.97 * best.sum()


@pytest.mark.parametrize("case", all_cases(windows=(24, 7), selecting=True))
def test_bands_and_choices_tile_what_is_kept(case, rope):
    assert_tiles(case, rope)


def test_kept_distances_stay_inside_the_window(rope):
    for case in (c.values[0] for c in all_cases(windows=(24, 7), selecting=True)):
        q, k, v = make_qkv(N)
        keep, rel = case.laid(recorded(case, "auto", q, k, v, rope, scale=SCALE))
        cap = getattr(case.method, "cap", 0)  # LM-Infinite's own is the window itself
        assert rel[keep].min() >= 0 and rel[keep].max() <= max(case.window - 1, cap)


def test_layers_fixed_takes_the_first_layers_choice(rope):
    method = AblatedLongHeads(chunk_length=3, fix_layers=True).resolve(24)
    first, second = make_qkv(N), make_qkv(N, seed=1)
    attender = Attender(method, 24)
    for _ in range(2):  # a second forward chooses anew, though nothing about the call differs
        state = ForwardState()
        attender(*first, rope, scale=SCALE, layer=0, state=state)
        out = attender(*second, rope, scale=SCALE, layer=1, state=state)
        case = build("longheads", {"chunk_length": 3})
        keep, rel = case.laid(recorded(case, "auto", *first, rope, scale=SCALE))
        expected = exact.oracle(*second, keep, rel, rope, scale=SCALE)
        assert (out - expected).abs().max() < 1e-5
        first = make_qkv(N, seed=2)


@pytest.mark.parametrize("remap", ["slots", "dca", "far"])
def test_a_layer_sees_what_it_chose_itself(remap, rope):
    """Layers share positions, where these do not depend on the choice."""
    attender, state = Attender(LongHeads(chunk_length=3, score="bounds", remap=remap).resolve(24), 24), ForwardState()
    first, second = make_qkv(N), make_qkv(N, seed=1)
    attender(*first, rope, scale=SCALE, layer=0, state=state)
    out = attender(*second, rope, scale=SCALE, layer=1, state=state)
    assert_same(out, attender(*second, rope, scale=SCALE, layer=1))


def test_no_more_scores_are_held_than_may_be(rope, monkeypatch):
    qkv, held, choose = make_qkv(N, batch=2), [], ChunkSelector.choose

    def spy(*args):
        found = choose(*args)
        held.append(found.scores().numel())
        return found

    # The output is the same either way.
    monkeypatch.setattr(ChunkSelector, "choose", spy)
    attender = Attender(LongHeads(chunk_length=3, score="bounds", share="head").resolve(24), 24)
    whole = attender(*qkv, rope, scale=SCALE)
    (every,) = held
    attender.chooser.scores_at_once = every // 5
    assert_same(attender(*qkv, rope, scale=SCALE), whole)
    assert 5 <= len(held) - 1 < 15 and max(held[1:]) <= every // 5
    attender.chooser.scores_at_once = 1  # less than one query has
    assert_same(attender(*qkv, rope, scale=SCALE), whole)


def test_golden_chunk_queries():
    """Eq 2 by itself: with the queries' own mean as the only query, the oracle's first step."""
    golden = load_file(GOLDEN)
    cos, sin = Table(inv_freq(16))(torch.arange(32))
    rope = Rope(Table(inv_freq(16)), 16)
    chunks = [golden[x][0, :, : 21 * 32].unflatten(1, (21, 32)).transpose(0, 1) for x in "qkv"]
    q, k = rope.rotate_q(chunks[0], cos, sin), rope.rotate_k(chunks[1], cos, sin)
    query = ((q @ k.mT / 4).softmax(dim=-1) @ chunks[2]).mean(dim=2).transpose(0, 1)
    assert (query - golden["chunk_query"][0]).abs().max() < 1e-5


def test_random_choices_depend_on_seed_query_and_layer_alone():
    rows = torch.arange(40, 60)
    drawn = [AblatedChunks(2, 6, 1, first=False, pick="random", seed=seed) for seed in (0, 0, 1)]
    kept = [chunks.draw(2, rows, 0) for chunks in drawn]
    assert torch.equal(kept[0], kept[1]) and not torch.equal(kept[0], kept[2])
    assert not torch.equal(kept[0], drawn[0].draw(2, rows, 1))
    assert torch.equal(drawn[0].draw(2, rows[7:8], 0), kept[0][:, 7:8])
    assert not torch.equal(kept[0][0], kept[0][1])
    counts = kept[0].flatten().bincount(minlength=20)
    assert (counts[:19] > 0).all()


@pytest.mark.parametrize("angles", [PI(scale=2.0), DynamicNTK(factor=2.0)], ids=["pi", "dynamic-ntk"])
def test_full_attention_in_the_encoding_phase(angles, rope):
    """The paper's "w/ PI init" and "w/ NTK init": everything under scaled angles first, LongHeads in generation."""
    window, last = 24, N - 1
    q, k, v = make_qkv(N)
    full = Full(angles=angles).resolve(window)
    encoded = Attender(full, window)(*(x[:, :, :last] for x in (q, k, v)), rope, scale=SCALE)
    method = AblatedLongHeads(chunk_length=3, prefill="full", angles=angles).resolve(window)
    attender, store = Attender(method, window), KVStore()
    out = attender(*(x[:, :, :last] for x in (q, k, v)), rope, scale=SCALE, store=store)
    assert (out - encoded).abs().max() < 1e-12
    step = attender(*(x[:, :, last:] for x in (q, k, v)), rope, scale=SCALE, store=store)
    # In generation nothing lies beyond the window, where dynamic angles are the model's own.
    throughout = LongHeads(chunk_length=3, angles=Angles() if angles.dynamic else angles).resolve(window)
    alone = Attender(throughout, window)(q, k, v, rope, scale=SCALE)
    assert (step - alone[:, :, last:]).abs().max() < 1e-6
    assert (out - alone[:, :, :last]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "options"),
    [("esa", {"query_chunk": 4}), ("longheads", {"chunk_length": 3, "score": "token_max"})],
    ids=["esa", "longheads"],
)
def test_reduced_scores_of_a_padded_batch(name, options, rope):
    case, pads, cuts = build(name, options), (0, 9, 9), (12, 50, 80, 81, N)
    q, k, v = make_qkv(N, batch=3)
    attender = Attender(case.method, case.window, calibration=calibration(4, 2 * HEAD, 2))
    out = in_pieces(attender, (q, k, v), rope, cuts, KVStore(), scale=SCALE, padding=pads)
    exact_out = in_pieces(Attender(case.method, 24), (q, k, v), rope, cuts, KVStore(), scale=SCALE, padding=pads)
    assert (out - exact_out).abs().max() > 1e-3  # they do choose otherwise
    for row, pad in enumerate(pads):
        alone = tuple(x[row : row + 1, :, pad:] for x in (q, k, v))
        expected = in_pieces(attender, alone, rope, [c - pad for c in cuts], KVStore(), scale=SCALE)
        assert_same(out[row : row + 1, :, pad:], expected)


def test_reduced_scores_equal_scores_of_reduced_vectors(rope):
    """ESA with maps that keep everything chooses as exact scores do."""
    case, both = build("esa", {"query_chunk": 4}), torch.eye(2 * HEAD)
    whole = replace(calibration(2 * HEAD, 2 * HEAD, 2), layers={0: Projection(both, both)})
    qkv = make_qkv(N)
    out = Attender(case.method, 24, calibration=whole)(*qkv, rope, scale=SCALE)
    assert_same(out, Attender(case.method, 24)(*qkv, rope, scale=SCALE))
    stated = replace(case.method, reduced=2 * HEAD)
    assert_same(out, Attender(stated, 24, calibration=whole)(*qkv, rope, scale=SCALE))


@pytest.mark.parametrize(
    ("name", "options", "given", "words"),
    [
        ("esa", {"reduced": 8}, None, "reduced=8 requires a calibration"),
        ("esa", {"reduced": 8}, 4, "reduced=8 and the calibration has reduced=4"),
        ("esa", {"share": "head"}, 4, "share='head'"),
        ("esa", {"combine": "max"}, 4, "combine='max'"),
        ("dca", {}, 4, "dca does not use a calibration"),
        ("longheads", {}, 4, "longheads does not use a calibration"),
        ("infllm", {}, 4, "infllm does not use a calibration"),
    ],
)
def test_calibrations_that_do_not_fit_the_method(name, options, given, words):
    with pytest.raises(CalibrationError, match=words):
        Attender(
            (METHODS | ABLATIONS)[name](**options).resolve(24), 24, calibration=given and calibration(given, 32, 2)
        )


@pytest.mark.parametrize("score", ["token_max", "submeans", "bounds", "representation"])
def test_repeated_text_is_chosen_alike_however_it_arrives(score):
    """Equal keys give scores that tie but for their rounding, which must not decide."""
    model = make("llama")
    window = model.config.max_position_embeddings
    ids = torch.tensor([[5, 9, 5, 5, 7, 9, 11, 5] * 30])[:, : 3 * window + 7]
    longspan.extend(model, LongHeads(score=score))
    with torch.no_grad():
        whole = model(ids).logits
        cache = longspan.new_cache(model)
        parts = [
            model(x, past_key_values=cache).logits for x in ids.split([window + 9, 50, ids.shape[1] - window - 59], 1)
        ]
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-3
