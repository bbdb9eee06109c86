"""InfLLM's query chunks and LM-Infinite's middle tokens, beyond what every selecting method is tested for."""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender, Observer
from longspan.choosing.top_k_tokens import TopKTokens
from longspan.memory import KVStore
from longspan.methods import InfLLM, LMInfinite
from support.cases import HEAD, assert_same, build, in_pieces, make_qkv, marks

SCALE = HEAD**-0.5
WINDOW = 24


def test_infllm_defaults():
    at = InfLLM().resolve(8192)
    assert (at.initial, at.local, at.block, at.blocks, at.representatives, at.query_chunk) == (
        128,
        4096,
        128,
        16,
        4,
        512,
    )
    small = InfLLM().resolve(512)
    assert (small.block, small.blocks, small.far) == (32, 4, 256)
    assert InfLLM(block=2).resolve(512).representatives == 2


MIDDLE = {"sinks": 3, "recent": 7, "cap": 11, "middle_top_k": 4, "middle_at": 5}


def test_runs_cover_every_query_once():
    for top_k, start, stop, most in ((1, 0, 30, 7), (4, 0, 30, 7), (4, 11, 30, 50), (4, 29, 30, 1), (4, 0, 9, 5)):
        middle = TopKTokens(3, 7, top_k)
        runs = middle.runs(start, stop, most)
        assert [i for a, b in runs for i in range(a, b)] == list(range(max(start, 10), stop))
        for a, b in runs:
            counts = {min(top_k, middle.scored(i)) for i in range(a, b)}
            assert counts <= {top_k} or b - a == 1
            assert b - a <= most and min(counts) >= 1


def test_without_middle_tokens_nothing_is_chosen(rope):
    method = LMInfinite(sinks=3, recent=7).resolve(WINDOW)
    attender = Attender(method, WINDOW)
    assert not method.selects and attender.chooser is None and len(method.bands(WINDOW)) == 4
    assert method.selection(WINDOW).keep(torch.tensor(20), torch.tensor(5)).item() is False


def test_layers_before_the_first_keep_what_they_kept(rope):
    qkv = make_qkv(60)
    static = Attender(build("lm-infinite", {**MIDDLE, "middle_top_k": 0}).method, WINDOW)(*qkv, rope, scale=SCALE)
    attender = Attender(build("lm-infinite", {**MIDDLE, "from_layer": 2}).method, WINDOW)
    outs = [attender(*qkv, rope, scale=SCALE, layer=layer) for layer in range(4)]
    assert_same(outs[0], static)
    assert_same(outs[1], static)
    differs = (outs[2] - static).abs().amax(dim=(0, 1, 3)) > 1e-9
    assert differs.nonzero()[0] == 10 and differs[10:].all()
    assert_same(outs[3], outs[2])


def test_blocks_of_few_scores(rope):
    case, qkv = build("lm-infinite", {**MIDDLE, "from_layer": 0}), make_qkv(60)
    outs, chosen = [], []
    for most in (None, 4 * 60 * 5):
        attender = Attender(case.method, WINDOW)
        attender.chooser.scores_at_once = most or attender.chooser.scores_at_once
        outs.append(attender(*qkv, rope, scale=SCALE))
        attender.observer = Observer(every=True, scores=False)
        attender.observer.begin()
        attender(*qkv, rope, scale=SCALE)
        chosen.append(marks(attender.observer, 1, 4, 60))
    assert len(attender.tables.selection.runs(0, 60, 5)) > 4
    assert torch.equal(*chosen)
    assert_same(*outs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {}], ids=list)
@pytest.mark.parametrize("dv", [8, 16, 24])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_middle_tokens_through_every_kernel(dtype, options, dv, kv_heads, rope):
    case, qkv = (
        build("lm-infinite", {**MIDDLE, "from_layer": 0}),
        make_qkv(60, batch=2, dv=dv, kv_heads=kv_heads, dtype=dtype),
    )
    truth = Attender(case.method, WINDOW, "reference")(*qkv, rope, scale=SCALE, **options)
    for impl in ("torch", "auto"):
        out = Attender(case.method, WINDOW, impl)(*qkv, rope, scale=SCALE, **options)
        assert (out - truth).abs().max() <= (1e-9 if dtype == torch.float64 else 0.05 * truth.abs().max())


def test_decoding_middle_tokens_after_a_crop(rope):
    case, qkv = build("lm-infinite", {**MIDDLE, "from_layer": 0}), make_qkv(60)
    attender, store = Attender(case.method, WINDOW), KVStore()
    in_pieces(attender, qkv, rope, [12, 50], store, scale=SCALE)
    store.crop(39)
    out = in_pieces(attender, qkv, rope, range(12, 61), store, scale=SCALE)
    assert_same(out, Attender(case.method, WINDOW)(*qkv, rope, scale=SCALE)[:, :, 11:])
