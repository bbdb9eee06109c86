"""After ``extend``, whatever makes that what was attached no longer runs raises, and says what to do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import longspan
from longspan.errors import LongspanError
from support.hf_models import make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


def extended(name="llama", method="dca"):
    model = make(name)
    longspan.extend(model, method)
    return model


class Wrapper(nn.Module):
    """Calls a layer's forward by itself, past its hooks."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer.forward(*args, **kwargs)


class Own(nn.Module):
    """Attention in code of its own."""

    def __init__(self, layer):
        super().__init__()
        self.proj = layer.o_proj

    def forward(self, hidden_states, **kwargs):
        return hidden_states, None


def other_layer(model):
    first = model.model.layers[0]
    first.self_attn = type(first.self_attn)(model.config, 0)


def wrapped_layer(model):
    first = model.model.layers[0]
    first.self_attn = Wrapper(first.self_attn)


def own_layer(model):
    first = model.model.layers[0]
    first.self_attn = Own(first.self_attn)


def patched_forward(model):
    first = model.model.layers[0].self_attn
    first.forward = lambda hidden_states, **kwargs: (hidden_states, None)


def other_config(model):
    for part in model.modules():
        if hasattr(part, "config"):
            part.config = copy.deepcopy(make("llama").config)


def other_layers_config(model):
    model.model.layers[0].self_attn.config = copy.deepcopy(make("llama").config)


def no_layer_hooks(model):
    for layer in model.model.layers:
        layer.self_attn._forward_pre_hooks.clear()


def no_decoder_hooks(model):
    model.model._forward_pre_hooks.clear()


def no_hooks_but_the_decoders(model):
    no_layer_hooks(model)
    model.set_attn_implementation("sdpa")


def no_hooks_but_the_layers(model):
    no_decoder_hooks(model)
    model.set_attn_implementation("sdpa")


def fewer_layers(model):
    model.model.layers = model.model.layers[:1]


def a_layer_twice(model):
    model.model.layers[1] = model.model.layers[0]


SPOILED = {
    "sdpa": (lambda m: m.set_attn_implementation("sdpa"), "set to 'sdpa'.*extend.*again.*restore"),
    "eager": (lambda m: m.set_attn_implementation("eager"), "set to 'eager'"),
    "of a part": (lambda m: m.model.set_attn_implementation({"": "sdpa"}), "set to 'sdpa'"),
    "paged": (lambda m: setattr(m.config, "_attn_implementation_internal", "paged|eager"), "set to 'paged.eager'"),
    "layer replaced": (other_layer, "has no longspan hook"),
    "layer wrapped": (wrapped_layer, "has no longspan hook"),
    "layer of another kind": (own_layer, r"layers \[0\] did not attend through longspan"),
    "forward patched": (patched_forward, r"layers \[0\] did not attend"),
    "configs swapped": (other_config, "set to 'sdpa'"),
    "a layer's config swapped": (other_layers_config, "set to 'sdpa'"),
    "hooks of layers removed": (no_layer_hooks, "hooks were removed"),
    "hook of the decoder removed": (no_decoder_hooks, "did not run.*hooks were removed"),
    "hooks of layers removed and sdpa": (no_hooks_but_the_decoders, "set to 'sdpa'"),
    "hook of the decoder removed and sdpa": (no_hooks_but_the_layers, "did not run.*hooks were removed"),
    "layers taken out": (fewer_layers, r"layers \[1\] did not attend"),
    "layers swapped": (a_layer_twice, "more than once"),
}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("how", SPOILED)
def test_what_no_longer_runs_raises(how, cached):
    spoil, says = SPOILED[how]
    model = extended()
    before = model(prompts(1, 80)).logits
    spoil(model)
    with pytest.raises(LongspanError, match=says):
        model(prompts(1, 80), use_cache=cached)
    assert before.isfinite().all()


def test_it_goes_on_once_the_attention_is_set_back_or_the_model_extended_again():
    model = extended()
    ids = prompts(1, 80)
    before = model(ids).logits
    model.set_attn_implementation("sdpa")
    longspan.extend(model, "dca")
    assert torch.equal(model(ids).logits, before)
    model.set_attn_implementation("eager")
    longspan.restore(model)
    assert torch.allclose(model(ids).logits, make("llama")(ids).logits, atol=1e-5)


def test_norms_after_the_rotation_are_not_applied_twice():
    model = extended("hunyuan_v1_dense", "full")
    model(prompts())
    model.model.layers[1].self_attn.query_layernorm._forward_hooks.clear()
    with pytest.raises(LongspanError, match="hooks on its norms were removed"):
        model(prompts())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 20, 40], dtype=torch.int32)}, "cu_seq_lens_q.*packed"),
        ({"cu_seq_lens_k": torch.tensor([0, 20, 40], dtype=torch.int32)}, "cu_seq_lens_k"),
        ({"block_table": torch.zeros(1, 4, dtype=torch.int32)}, "paged cache"),
        ({"cache": object()}, "(cache|past_key_values) is a object, which an extended model cannot use"),
        ({"is_causal": False}, "causally"),
        ({"past_key_values": DynamicCache()}, "new_cache"),
    ],
)
def test_packed_sequences_and_pages_are_refused(more, says):
    with pytest.raises(LongspanError, match=says):
        extended()(prompts(1, 40), **more)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.init_continuous_batching(),
        lambda m: m.generate_batch([[5, 6, 7]]),
        lambda m: m.continuous_batching_context_manager().__enter__(),
    ],
)
def test_continuous_batching_is_refused_at_once(call):
    model = extended()
    with pytest.raises(LongspanError, match="continuous batching"):
        call(model)
    assert model.config._attn_implementation == "longspan"
    model(prompts())
    longspan.restore(model)
    assert "init_continuous_batching" not in vars(model)


def test_forward_called_by_itself_says_so():
    model = extended()
    with pytest.raises(LongspanError, match="call the model and not its forward"):
        model.model.forward(prompts())


def test_a_failed_forward_leaves_nothing_behind():
    model = extended()
    ids = prompts(1, 40)
    before = model(ids).logits
    broken = model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids)
    broken.remove()
    model.model._forward_pre_hooks.clear()
    with pytest.raises(LongspanError, match="hooks were removed"):
        model(ids)
    longspan.restore(model)
    longspan.extend(model, "dca")
    assert torch.equal(model(ids).logits, before)


def test_early_exit_of_the_model_as_its_own_assistant_still_runs():
    model = extended()
    ids = prompts(1, 40)
    plain = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False, assistant_early_exit=1), plain)
