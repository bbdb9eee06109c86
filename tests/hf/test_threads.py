"""One extended model used by several threads at once, each with caches of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

import longspan
from longspan.methods import METHODS
from support.hf_models import VOCABULARY, WINDOW, make

THREADS = 8
LENGTHS = (5, 40, 63, 64, 65, 90, 130, 200)  # of the threads' prompts: inside the window of 64 tokens and beyond
# What is tried besides every method at its defaults: each score of LongHeads, other positions, choices per head.
OTHERS = {
    "longheads-bounds": longspan.LongHeads(score="bounds"),
    "longheads-token_max": longspan.LongHeads(score="token_max", share="head"),
    "longheads-dca": longspan.LongHeads(score="bounds", remap="dca"),
    "esa-group": longspan.ESA(share="group", remap="slots"),
    "lm-infinite-middle": longspan.LMInfinite(middle_top_k=3, from_layer=0),
    "dca-length_scale": longspan.DCA(length_scale=0.1),
    "longheads-dynamic-ntk": longspan.LongHeads(score="bounds", angles=longspan.DynamicNTK()),
}
ALL: dict[str, object] = {**dict.fromkeys(METHODS), **OTHERS}

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("threads_switch_often")]


def prompt(length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))


def forward(model, ids: Tensor) -> Tensor:
    return model(input_ids=ids).logits


def decode(model, ids: Tensor) -> Tensor:
    """The last tokens one by one, after the others at once."""
    cache, first = longspan.new_cache(model), max(ids.shape[1] - 6, 1)
    out = [model(input_ids=ids[:, :first], past_key_values=cache).logits]
    for at in range(first, ids.shape[1]):
        out.append(model(input_ids=ids[:, at : at + 1], past_key_values=cache).logits)
    return torch.cat(out, dim=1)


def generate(model, ids: Tensor) -> Tensor:
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)


def padded(model, ids: Tensor) -> Tensor:
    """A batch whose second row begins with padding."""
    pad = ids.shape[1] // 3
    both, mask = ids.repeat(2, 1), torch.ones(2, ids.shape[1], dtype=torch.int64)
    both[1, :pad], mask[1, :pad] = 0, 0
    return model.generate(both, attention_mask=mask, max_new_tokens=4, do_sample=False)


def at_once(jobs: list[Callable[[], Tensor]]) -> list[Tensor]:
    """What the jobs return when each runs in a thread of its own and all start together."""
    together = Barrier(len(jobs))

    def run(job: Callable[[], Tensor]) -> Tensor:
        together.wait()
        with torch.no_grad():
            return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_threads_with_caches_of_their_own_get_what_each_gets_alone(name):
    model = make("llama")
    longspan.extend(model, ALL[name] or name)
    for use in (forward, decode, generate, padded):
        with torch.no_grad():
            alone = [use(model, prompt(length)) for length in LENGTHS]
        found = at_once([lambda length=length, use=use: use(model, prompt(length)) for length in LENGTHS])
        for length, a, b in zip(LENGTHS, alone, found, strict=True):
            assert a.shape == b.shape and torch.allclose(a, b, atol=1e-5), (use.__name__, length)


@pytest.mark.long
@pytest.mark.parametrize("impl", ["torch", "flash_cpu", "reference"])
def test_the_same_on_other_kernels(impl):
    for name in ("dca", "longheads", "esa"):
        model = make("llama")
        longspan.extend(model, name, impl=impl)
        with torch.no_grad():
            alone = [decode(model, prompt(length)) for length in LENGTHS]
        found = at_once([lambda length=length, model=model: decode(model, prompt(length)) for length in LENGTHS])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, found, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", ["dca", "longheads-bounds", "esa", "infllm", "streaming-llm"])
def test_many_rounds(name):
    model = make("llama")
    longspan.extend(model, ALL[name] or name)
    with torch.no_grad():
        alone = {length: decode(model, prompt(length)) for length in LENGTHS}
    for _ in range(30):
        found = at_once([lambda length=length, model=model: decode(model, prompt(length)) for length in LENGTHS])
        assert all(torch.allclose(alone[n], x, atol=1e-5) for n, x in zip(LENGTHS, found, strict=True))


def test_models_can_be_extended_side_by_side():
    models = [make(name) for name in ("llama", "qwen2", "phi", "gpt_neox", "glm4", "qwen3", "olmo2", "stablelm")]

    def extend(model) -> Tensor:
        longspan.extend(model, "dca")
        ids = prompt(WINDOW)
        out = model(input_ids=ids).logits
        longspan.restore(model)
        return (out - model(input_ids=ids).logits).abs().max()

    for _ in range(3):
        assert max(map(float, at_once([lambda model=model: extend(model) for model in models]))) < 1e-3


def test_one_model_extended_by_many_threads_ends_up_extended_once():
    model = make("llama")
    stock = model(input_ids=prompt(30)).logits
    names = ["dca", "longheads", "esa", "full", "streaming-llm", "infllm", "lm-infinite", "full"]
    at_once([lambda name=name: longspan.extend(model, name) and torch.zeros(1) for name in names])
    assert torch.allclose(model(input_ids=prompt(30)).logits, stock, atol=1e-5)
    longspan.restore(model)
    assert torch.equal(model(input_ids=prompt(30)).logits, stock)
    assert not any(module._forward_pre_hooks for module in model.modules())
