"""``torch.compile`` before and after ``extend``: right, with breaks in the graph where longspan's hooks are."""

from __future__ import annotations

import pytest
import torch
from transformers import CompileConfig

import longspan
from longspan.kernels import cpu
from support.hf_models import make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.long]  # compiling takes most of a minute each


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def wrapped_after(model, extend):
    extend()
    return torch.compile(model, backend=BACKEND)


def wrapped_before(model, extend):
    run = torch.compile(model, backend=BACKEND)
    run(prompts(1, 80))
    extend()
    return run


def in_place_after(model, extend):
    extend()
    model.compile(backend=BACKEND)
    return model


def in_place_before(model, extend):
    model.compile(backend=BACKEND)
    model(prompts(1, 80))
    extend()
    return model


def forward_after(model, extend):
    extend()
    model.forward = torch.compile(model.forward, backend=BACKEND)
    return model


def layers_after(model, extend):
    extend()
    for layer in model.model.layers:
        layer.compile(backend=BACKEND)
    return model


def layers_before(model, extend):
    for layer in model.model.layers:
        layer.compile(backend=BACKEND)
    model(prompts(1, 80))
    extend()
    return model


def attention_after(model, extend):
    extend()
    for layer in model.model.layers:
        layer.self_attn.compile(backend=BACKEND)
    return model


BACKEND = "aot_eager"  # traces as inductor does, and compiles nothing in C++
WAYS = [
    wrapped_after,
    wrapped_before,
    in_place_after,
    in_place_before,
    forward_after,
    layers_after,
    layers_before,
    attention_after,
]


@pytest.mark.parametrize("method", ["dca", "longheads"])
@pytest.mark.parametrize("way", WAYS)
def test_compiled_models_give_what_plain_ones_do(way, method):
    ids = prompts(2, 80)
    plain = make("llama")
    stock = plain(ids).logits
    longspan.extend(plain, method)
    want, tokens = plain(ids).logits, plain.generate(ids, max_new_tokens=6, do_sample=False)
    model = make("llama")
    run = way(model, lambda: longspan.extend(model, method))
    assert torch.allclose(run(ids).logits, want, atol=1e-5)
    assert torch.equal(run.generate(ids, max_new_tokens=6, do_sample=False), tokens)
    longspan.restore(run)
    assert torch.allclose(run(ids).logits, stock, atol=1e-5)


def test_what_no_longer_runs_raises_in_a_compiled_model_too():
    model = make("llama")
    longspan.extend(model, "dca")
    run = torch.compile(model, backend=BACKEND)
    run(prompts())
    model.set_attn_implementation("sdpa")
    with pytest.raises(longspan.LongspanError, match="set to 'sdpa'"):
        run(prompts())
    longspan.restore(model)
    cache = longspan.extend(model, "dca") and longspan.new_cache(model)
    longspan.restore(model)
    with pytest.raises(longspan.CacheError, match="not extended"):
        run(prompts(), past_key_values=cache)


def test_generates_own_compiling_leaves_the_cache_alone():
    model = make("llama")
    longspan.extend(model, "dca")
    want = model.generate(prompts(), max_new_tokens=4, do_sample=False)
    config = CompileConfig()
    config._compile_all_devices = True
    assert torch.equal(model.generate(prompts(), max_new_tokens=4, do_sample=False, compile_config=config), want)


@pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no C compiler, which inductor needs on a CPU")
def test_with_the_compiler_that_people_use():
    model = make("llama")
    longspan.extend(model, "dca")
    want = model(prompts(1, 80)).logits
    assert torch.allclose(torch.compile(model)(prompts(1, 80)).logits, want, atol=1e-5)
