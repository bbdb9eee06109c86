"""Query chunks in one launch of each Triton kernel: they are what they are one by one, with few copies and no wait."""

from __future__ import annotations

import pytest
import torch

from longspan import ESA, InfLLM
from longspan.attend import Attender, ForwardState
from longspan.choosing.blocks import BlockSelector
from longspan.choosing.tokens import TokenSelector
from longspan.kernels.gpu import tiles
from longspan.memory import KVStore
from longspan.rope import Rope, Table
from support.cases import HEAD, ROPES, WINDOW, assert_same, inv_freq, make_qkv
from support.choices import calibration

pytest.importorskip("triton")
from support.host import META, tensors, watched

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE, SCALE, N = "cpu" if tiles.interpreting() else "cuda", 0.25, 60
ESA_OPTIONS = {"initial": 2, "local": 6, "top_k": 9, "query_chunk": 4}
OPTIONS = {
    "layer": (ESA, ESA_OPTIONS),
    "group": (ESA, ESA_OPTIONS | {"share": "group", "proximity": 0, "query_chunk": 5}),
    "head": (ESA, {"initial": 1, "local": 5, "top_k": 4, "query_chunk": 7, "share": "head", "proximity": 3}),
    "scored at a distance": (ESA, ESA_OPTIONS | {"score_at": 5}),
    "blocks": (InfLLM, {"initial": 3, "local": 7, "block": 5, "blocks": 2, "query_chunk": 3}),
}


def run(method, options, many, cuts=(), given=None, monkeypatch=None, **call):
    """The output of a prefill in calls that end at ``cuts``, and how many query chunks ran with others."""
    runs = Attender(method(**options).resolve(WINDOW), WINDOW, "triton", given)
    runs.chooser.many, counts = many, []
    for selector in (TokenSelector, BlockSelector):
        real = selector.add_many
        # Counts the calls and passes them on.
        monkeypatch.setattr(selector, "add_many", lambda *x, real=real: counts.append(real(*x)) or counts[-1])
    qkv = [x.to(DEVICE) for x in make_qkv(N, batch=2, dtype=call.pop("dtype", torch.float32))]
    store, outs = KVStore(), []
    for a, b in zip((0, *cuts), (*cuts, N), strict=True):
        part = (x[:, :, a:b] for x in qkv)
        outs.append(runs(*part, ROPES["half-leading"](), scale=SCALE, store=store, **call))
    return torch.cat(outs, dim=2), sum(counts)


@pytest.mark.parametrize("name", OPTIONS)
def test_many_are_what_they_are_one_by_one(name, monkeypatch):
    method, options = OPTIONS[name]
    out, together = run(method, options, True, monkeypatch=monkeypatch)
    assert together >= 5
    assert_same(out, run(method, options, False, monkeypatch=monkeypatch)[0])


def test_calls_padding_softcaps_and_dtypes(monkeypatch):
    call = {"cuts": (37, 40), "padding": (9, 9), "softcap": 3.0, "dtype": torch.bfloat16, "monkeypatch": monkeypatch}
    out, together = run(ESA, ESA_OPTIONS, True, **call)
    assert together
    assert_same(out, run(ESA, ESA_OPTIONS, False, **call)[0])


def test_reduced_scores(monkeypatch):
    given = calibration(8, 2 * HEAD, 2)
    out, together = run(ESA, ESA_OPTIONS, True, given=given, monkeypatch=monkeypatch)
    assert together
    assert_same(out, run(ESA, ESA_OPTIONS, False, given=given, monkeypatch=monkeypatch)[0])


LAYERS, LONG = 3, 256


def prefill(method, monkeypatch, tokens):
    """What the host does for a prefill of some layers on a GPU that is not there."""
    runs = Attender(method.resolve(LONG), LONG)
    rope, stores, state = Rope(Table(inv_freq(64).to(META)), 64), [KVStore() for _ in range(LAYERS)], ForwardState()
    qkv = tensors(tokens, 4, 2, 64)
    with watched(monkeypatch) as host:
        counts = []
        for n, store in enumerate(stores):
            before = len(host.copies)
            runs(*qkv, rope, scale=SCALE, store=store, state=state, layer=n)
            counts.append(len(host.copies) - before)
        return host, counts


def test_scores_choices_and_attention_of_many_query_chunks_are_a_launch_each(monkeypatch):
    method = ESA(initial=16, local=64, top_k=32, query_chunk=16)
    host, copies = prefill(method, monkeypatch, LONG + 16 * 40)
    assert [host.kernels.count(x) for x in ("token_scores", "topk", "nearby", "by_query_chunk")] == [
        2 * LAYERS, LAYERS, LAYERS, LAYERS,
    ]  # fmt: skip
    assert host.waits == [] and copies[1:] == [0] * (LAYERS - 1), host.copies


def test_attention_of_many_blocks_is_one_launch(monkeypatch):
    method = InfLLM(initial=16, local=64, block=16, blocks=4, query_chunk=16)
    host, _ = prefill(method, monkeypatch, LONG + 16 * 40)
    assert host.kernels.count("by_query_chunk") == LAYERS and host.waits == []
