"""Decoding on a CPU from the calls of torch alone: the bits that the modules give, or a refusal with the reason."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import longspan
from longspan.hf import graphs
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.methods import METHODS
from support.hf_models import STEPS, WINDOW, greedy_steps, left_padded, make, prompts
from support.scaled_weight import Scaled

pytestmark = pytest.mark.skipif(
    graphs.why_no_graph(torch.device("cpu")) is None, reason="a graph is recorded on the CPU here"
)
FAMILIES = (
    "llama", "llama-mha", "mistral", "qwen2", "qwen3", "phi", "phi3", "olmo2", "granite", "glm4", "gpt_neox",
    "stablelm", "hunyuan_v1_dense", "cohere", "nemotron", "nanochat",
)  # fmt: skip


def flat(model):
    """How many numbers of rows have a flat step."""
    return len(model.forward.steps._flat)  # that later steps came from it shows nowhere else


def assert_flat(model, ids, mask=None):
    plain, cache = greedy_steps(model, ids, mask=mask)
    with longspan.graphed(model):
        found, own = greedy_steps(model, ids, mask=mask)
        assert flat(model) == 1
    assert torch.equal(found, plain)
    for a, b in zip(own.stores, cache.stores, strict=True):
        assert torch.equal(a.values, b.values) and all(map(torch.equal, a.keys, b.keys))
    assert "forward" not in vars(model)


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name):
    """From inside the window to beyond it."""
    model = make("llama")
    longspan.extend(model, name)
    assert_flat(model, prompts(1, WINDOW - 3))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    model = make(family)
    longspan.extend(model, "esa")
    assert_flat(model, prompts(2, WINDOW + 9))


@pytest.mark.parametrize("pads", [[5, 5], [0, 7, 7]])
def test_padded_rows(pads):
    model = make("llama")
    ids, mask, _ = left_padded(prompts(len(pads), WINDOW + 2), pads)
    longspan.extend(model, "dca")
    assert_flat(model, ids, mask)


@torch.no_grad()
def test_padded_rows_of_one_length_twice():
    """The second step of a length is not noted and runs as the model's own."""
    model, one = make("llama"), torch.full((2, 1), 5)
    ids, mask, _ = left_padded(prompts(2, WINDOW + 2), [5, 0])
    longspan.extend(model, "dca")
    cache, mask = longspan.new_cache(model), torch.nn.functional.pad(mask, (0, 1), value=1)
    model(ids, attention_mask=mask[:, :-1], past_key_values=cache)
    with longspan.graphed(model):
        first = model(one, attention_mask=mask, past_key_values=cache).logits
        cache.crop(-1)
        assert torch.equal(model(one, attention_mask=mask, past_key_values=cache).logits, first)


@pytest.mark.parametrize("options", [{"kv_tier": "disk"}, {"impl": "torch"}, {"impl": "flash_cpu"}])
def test_tiers_and_implementations(options):
    model = make("llama")
    longspan.extend(model, "longheads", **options)
    assert_flat(model, prompts(1, WINDOW + 5))


def test_reduced_precision():
    model = make("llama", torch.bfloat16)
    longspan.extend(model, "dca")
    assert_flat(model, prompts(1, WINDOW + 5))


def test_generate_with_several_beams_and_other_numbers_of_rows():
    model = make("llama")
    longspan.extend(model, "longheads")
    asked = [(prompts(rows, WINDOW + 5, seed=rows), {"num_beams": beams}) for rows, beams in ((1, 1), (3, 1), (1, 3))]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    plain = [model.generate(ids, **options, **own) for ids, own in asked]
    with longspan.graphed(model):
        found = [model.generate(ids, **options, **own) for ids, own in asked]
        assert flat(model) == 2  # of one row and of three
    assert all(map(torch.equal, found, plain))


def test_caches_in_turn_a_crop_and_a_prompt_between():
    model = make("llama")
    longspan.extend(model, "dca")

    def run():
        made = []
        caches = [greedy_steps(model, prompts(1, n, seed=n), count=3)[1] for n in (WINDOW, WINDOW + 7)]
        for n in range(6):
            made.append(greedy_steps(model, torch.full((1, 1), 5 + n), cache=caches[n % 2], count=1)[0])
        caches[0].crop(-3)
        made.append(greedy_steps(model, prompts(1, 4, seed=3), cache=caches[0], count=4)[0])
        return torch.cat(made, dim=1)

    plain = run()
    with longspan.graphed(model):
        assert torch.equal(run(), plain) and flat(model) == 1


@pytest.mark.parametrize("computed", [False, True])
def test_weights_that_change_in_place_are_read_anew(computed):
    model, ids = make("llama"), prompts(1, WINDOW + 3)
    longspan.extend(model, "dca")
    if computed:  # from the weights alone, as Gemma's norms do
        norm = model.model.norm
        model.model.norm = Odd(norm, lambda x, n: x * (1.0 + norm.weight[:, None].float()).mT)
    with longspan.graphed(model):
        _, cache = greedy_steps(model, ids)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.25)
        found, _ = greedy_steps(model, ids[:, :1], cache=cache)
        for store in cache.stores:
            assert store.length == WINDOW + 3 + STEPS - 1 + STEPS
    cache.crop(-STEPS)
    assert torch.equal(greedy_steps(model, ids[:, :1], cache=cache)[0], found)


class Odd(nn.Module):
    """A norm that does something else beside."""

    def __init__(self, norm, what):
        super().__init__()
        self.norm, self.what, self.calls = norm, what, count()

    def forward(self, x):
        return self.what(self.norm(x), next(self.calls))


def in_place(x, n):
    y = x + 1
    y[..., :3].mul_(2)
    return y


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda x, n: x * 2 if float(x.sum()) > 0 else x, r"looks into a tensor \(__float__\)"),
        (lambda x, n: x * x.abs().max().item(), r"looks into a tensor \(item\)"),
        (in_place, r"changes a tensor in place \(mul_\)"),
        (lambda x, n: torch.nn.functional.relu(x + 1, inplace=True), r"changes a tensor in place \(relu\)"),
        (lambda x, n: x * (2 if 1.5 in x else 1), r"looks into a tensor \(__contains__\)"),
        (lambda x, n: x * (1 + x[x > 9].numel()), r"looks into a tensor \(__getitem__\)"),
        (lambda x, n: x * (1 + len(torch.where(x > 9)[0])), r"looks into a tensor \(where\)"),
        (lambda x, n: x * torch.rand(1), "it draws random numbers"),
        (lambda x, n: x * (1 + n), "its steps differ: .* in the next"),
        (lambda x, n: x * (1.5 + n), "its steps differ: a float"),
        (lambda x, n: x * torch.from_numpy(np.full(1, 2, np.float32)), "its steps differ: a Tensor"),
        (lambda x, n: x + torch.arange(n, n + 1), "its steps differ: .* in the next"),
        (lambda x, n: x.relu() if n % 2 else x.exp(), "its steps differ: a method_descriptor"),
    ],
)
def test_what_differs_from_step_to_step_is_refused(what, match):
    """The number of a call stands for a position that a model computes with."""
    model = make("llama")
    longspan.extend(model, "dca")
    model.model.norm = Odd(model.model.norm, what)
    ids, cache = prompts(1, WINDOW), longspan.new_cache(model)
    refused = pytest.raises(longspan.LongspanError, match=f"LlamaForCausalLM: (it )?{match}.*without longspan.graphed")
    with longspan.graphed(model), refused:
        greedy_steps(model, ids, cache=cache)
    lengths = {store.length for store in cache.stores}
    assert len(lengths) == 1 and WINDOW < lengths.pop() <= WINDOW + 3, "whole tokens were taken in"
    assert "forward" not in vars(model)
    greedy_steps(model, ids[:, :1], cache=cache)


def test_steps_at_one_length_do_not_show_what_depends_on_it():
    model = make("llama")
    longspan.extend(model, "dca")
    past = []
    model.register_forward_pre_hook(lambda _, args, kwargs: past.append(kwargs[CACHE_ARGUMENT]), with_kwargs=True)
    odd = Odd(model.model.norm, lambda x, n: x + torch.arange(at := past[-1].get_seq_length(), at + 1).sin())
    model.model.norm = odd
    ids = prompts(1, WINDOW)
    plain = model.generate(ids, max_new_tokens=6, do_sample=False)
    with longspan.graphed(model):
        for _ in range(3):
            assert torch.equal(model.generate(ids, max_new_tokens=2, do_sample=False), plain[:, : WINDOW + 2])
        with pytest.raises(longspan.LongspanError, match="its steps differ"):
            model.generate(ids, max_new_tokens=6, do_sample=False)


def test_a_scale_that_changes_is_refused():
    model = make("llama")
    longspan.extend(model, "dca")
    attention, calls = model.model.layers[1].self_attn, count()
    hook = attention.register_forward_pre_hook(lambda *_: setattr(attention, "scaling", 0.25 + next(calls) / 8))
    with longspan.graphed(model), pytest.raises(longspan.LongspanError, match="its steps differ: a float"):
        greedy_steps(model, prompts(1, WINDOW))
    hook.remove()


def test_weights_are_freed_with_the_model():
    model = make("llama")
    longspan.extend(model, "dca")
    weight = weakref.ref(model.lm_head.weight)
    gc.disable()
    try:
        with longspan.graphed(model):
            greedy_steps(model, prompts(1, WINDOW))
            assert flat(model) == 1
        model.to("meta")  # has other weights
        assert weight() is None, "a step that is no longer used holds them"
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("family", "match"), [("gemma2", "stayed stock"), ("mixtral", r"changes a tensor in place \(__setitem__\)")]
)
def test_models_that_cannot_be_recorded(family, match):
    model = make(family)
    longspan.extend(model, "dca")
    with pytest.raises(longspan.LongspanError, match=match), longspan.graphed(model):
        greedy_steps(model, prompts(1, WINDOW))
    assert "forward" not in vars(model)


def test_weights_without_memory_of_their_own_are_refused_before_a_step():
    """torchao's int8: the type is named, and not the layout, which is that of every other weight."""
    model, ids = make("llama"), prompts(1, WINDOW)
    numbers = (2 * model.lm_head.weight).round().to(torch.int8)
    model.lm_head.weight = nn.Parameter(Scaled(numbers, torch.tensor(0.5)), requires_grad=False)
    longspan.extend(model, "dca")
    plain, _ = greedy_steps(model, ids)
    match = r"lm_head\.weight: a tensor of type Scaled has its numbers in others.*without longspan\.graphed"
    with pytest.raises(longspan.LongspanError, match=match), longspan.graphed(model):
        pytest.fail("a step was tried")
    assert "forward" not in vars(model) and torch.equal(greedy_steps(model, ids)[0], plain)


def test_calls_that_are_no_steps_run_as_before():
    model, ids = make("llama"), prompts(1, WINDOW)
    longspan.extend(model, "longheads")
    with longspan.graphed(model):
        _, cache = greedy_steps(model, ids)
        with pytest.warns(UserWarning, match="gradients are on"):
            assert model(ids[:, :1], past_key_values=cache).logits.requires_grad
        with torch.no_grad(), longspan.record(model) as choices:
            with pytest.warns(UserWarning, match="a recording is active"):
                model(input_ids=ids[:, :1], past_key_values=cache)
            assert model(input_ids=ids[:, :1], past_key_values=cache, output_hidden_states=True).hidden_states
            model.config.output_hidden_states = True
            assert model(input_ids=ids[:, :1], past_key_values=cache).hidden_states
            model.config.output_hidden_states = False
            model.config._attn_implementation = "sdpa"
            with pytest.raises(longspan.LongspanError, match="attention was set to 'sdpa'"):
                model(input_ids=ids[:, :1], past_key_values=cache)
    assert len(choices)
