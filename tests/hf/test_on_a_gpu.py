"""Whole models on a GPU: every method gives what it gives on a CPU, and every tier what the GPU's memory does."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.methods import METHODS
from support.hf_models import WINDOW, greedy_steps, left_padded, make, prompts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

FAMILIES = ["llama", "gpt_neox", "glm4", "gpt_oss", "gemma2", "hunyuan_v1_dense"]
CASES = {
    **{name: method() for name, method in METHODS.items()},
    "yarn": longspan.YaRN(factor=4),
    "longheads": longspan.LongHeads(chunk_length=4, num_chunks=6),
    "longheads by bounds": longspan.LongHeads(chunk_length=16, num_chunks=4, score="bounds", share="layer"),
    "lm-infinite with middle tokens": longspan.LMInfinite(middle_top_k=5, from_layer=0),
    "esa by group": longspan.ESA(share="group"),
}
SELECTING = [
    "longheads",
    "longheads by bounds",
    "lm-infinite with middle tokens",
    "esa",
    "esa by group",
    "infllm",
]


def steps(model, name, dtype, device, pads=(0, 5), **options):
    """Logits of a prompt of three windows and of greedy steps after it."""
    model = model.to(device, dtype)
    ids, mask, _ = left_padded(prompts(len(pads), 3 * WINDOW + 3), list(pads))
    with longspan.extended(model, CASES[name], **options):
        found, cache = greedy_steps(model, ids.to(device), mask=mask.to(device))
    return found.double().cpu(), cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", list(CASES))
def test_methods(name, family):
    expected, _ = steps(make(family), name, torch.float32, "cpu")
    found, _ = steps(make(family), name, torch.float32, "cuda")
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in SELECTING])
def test_narrow_dtypes(name, dtype):
    truth, _ = steps(make("llama"), name, torch.float64, "cpu")
    on_cpu, _ = steps(make("llama"), name, dtype, "cpu")
    found, _ = steps(make("llama"), name, dtype, "cuda")
    # The first logits alone: after a token that rounding decided otherwise the texts differ.
    error, allowed = ((x - truth)[:, 0].abs() for x in (found, on_cpu))
    assert error.max() <= 3 * allowed.max() and error.square().mean() <= 4 * allowed.square().mean()


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("name", SELECTING)
def test_tiers(name, tier, tmp_path):
    expected, _ = steps(make("llama"), name, torch.float32, "cuda")
    where = {"kv_dir": tmp_path} if tier == "disk" else {}
    found, cache = steps(make("llama"), name, torch.float32, "cuda", kv_tier=tier, **where)
    assert cache.bytes_by_tier[tier] > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["full", "dca", "rerope", "string", "longheads", "longheads by bounds", "esa"])
def test_generate_from_a_cuda_graph(name):
    # In fp32: the graph cuts keys into other parts, whose rounding would decide between tokens in bf16.
    model, ids = make("llama").to("cuda"), prompts(1, 3 * WINDOW).to("cuda")
    longspan.extend(model, CASES[name])
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **options)
    with longspan.graphed(model):
        assert torch.equal(model.generate(ids, **options), expected)
