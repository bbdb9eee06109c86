"""Parts of an extended model that are replaced or written to after ``extend``."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaPreTrainedModel,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

import longspan
from longspan.errors import AttachError, LongspanError
from longspan.hf.argument import CACHE_ARGUMENT, given_cache
from support.hf_models import make, prompts
from support.releases import TRANSFORMERS

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


def extended(name="llama", method="full"):
    model = make(name)
    longspan.extend(model, method)
    return model


def linear(model):
    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    return LlamaRotaryEmbedding(config)


def other_rotary(model):
    model.model.rotary_emb = linear(model)


def other_buffer(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 0.5


def written_to(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


def other_scaling(model):
    model.model.rotary_emb.attention_scaling = 1.5


def cast_and_written_to(model):
    model.to(torch.bfloat16)
    model(prompts(1, 40))
    model.model.rotary_emb.inv_freq.mul_(0.5)


ROTARY = [other_rotary, other_buffer, written_to, other_scaling, cast_and_written_to]


@pytest.mark.parametrize("change", ROTARY)
@pytest.mark.parametrize("before", [True, False])
def test_rotary_positions_that_changed_are_refused(change, before):
    model, stock, ids = extended(), make("llama"), prompts(1, 40)
    cache = model(ids).past_key_values if before else None
    change(model)
    change(stock)
    with pytest.raises(LongspanError, match="rotary positions changed after longspan.extend.*restore"):
        model(ids[:, :3], past_key_values=cache)
    longspan.restore(model)
    longspan.extend(model, "full")
    close = 1e-4 if change is not cast_and_written_to else 5e-2
    assert torch.allclose(model(ids).logits, stock(ids).logits, atol=close, rtol=close)


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.half().bfloat16().float(),
        lambda m: m.double().float(),
        lambda m: setattr(m.model, "rotary_emb", LlamaRotaryEmbedding(m.config)),
        lambda m: m.model.rotary_emb.inv_freq.mul_(1),
    ],
)
def test_the_same_frequencies_elsewhere_or_in_another_dtype_are_taken(move):
    model, stock = extended(), make("llama")
    for one in (model, stock):
        move(one)
    for _ in range(2):
        ours, theirs = (one(prompts(1, 40)).logits.float() for one in (model, stock))
        assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_layer_of_another_model_says_so(attention, cached):
    model, other = extended(), make("llama")
    other.set_attn_implementation(attention)
    model.model.layers[0] = other.model.layers[0]
    with pytest.raises(LongspanError, match="without longspan received longspan's mask.*restore"):
        model(prompts(1, 40), use_cache=cached)
    longspan.restore(model)
    with pytest.raises(LongspanError, match="set its modules' config to that of this model"):
        longspan.extend(model, "full")
    for part in model.model.layers[0].modules():
        if hasattr(part, "config"):
            part.config = model.config
    stock = model(prompts(1, 40)).logits
    longspan.extend(model, "full")
    assert torch.allclose(model(prompts(1, 40)).logits, stock, atol=1e-4)


def test_layers_of_another_model_at_the_end_say_so():
    model, other = extended(), make("llama")
    model.model.layers.append(other.model.layers[0])
    model.config.num_hidden_layers = 3
    with pytest.raises(LongspanError, match="longspan's mask"):
        model(prompts(1, 40), use_cache=False)


@pytest.mark.parametrize("cached", [True, False])
def test_another_decoder_in_the_model_says_so(cached):
    model = extended()
    model(prompts(1, 40))
    model.model = make("llama").model
    for _ in range(2):
        with pytest.raises(LongspanError, match="decoder was replaced after longspan.extend"):
            model(prompts(1, 40), use_cache=cached)
    longspan.restore(model)
    if TRANSFORMERS >= (5, 20):  # before, a model does not set the attention of another decoder
        longspan.extend(model, "dca")
        model(prompts(1, 40))


def test_the_decoder_itself_can_be_extended():
    decoder = make("llama").model
    longspan.extend(decoder, "dca")
    assert decoder(prompts(1, 40)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_outside_of_attention_are_named_as_such(value):
    model = make("llama")
    model.model.layers[-1].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(AttachError, match="stock model's own output is NaN or infinite"):
        longspan.extend(model, "dca")


class OwnAttention(LlamaAttention):
    """Attention as remote code may write it, which calls no interface and keeps its keys in the cache."""

    def forward(self, hidden_states, position_embeddings, **given):
        rows = hidden_states.shape[:-1]
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (one(hidden_states).view(*rows, -1, self.head_dim).transpose(1, 2) for one in projections)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        cache = given_cache(given)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(*rows, -1)), None


def test_a_layer_that_calls_no_interface_and_fills_the_cache_is_cropped():
    model, ids = make("llama"), prompts(1, 60)
    model.model.layers[0].self_attn.__class__ = OwnAttention
    assert [layer.index for layer in longspan.extend(model, "dca").attached] == [1]
    whole, cache = model(ids).logits, longspan.new_cache(model)
    model(ids, **{CACHE_ARGUMENT: cache})
    cache.crop(-20)
    assert [layer.get_seq_length() for layer in cache.layers] == [40, 40]
    torch.testing.assert_close(model(ids[:, 40:], **{CACHE_ARGUMENT: cache}).logits, whole[:, 40:], rtol=0, atol=1e-4)


class OneClass(LlamaPreTrainedModel):
    """Decoder and head in one class, as remote code has them."""

    def __init__(self, of):
        super().__init__(of.config)
        self.embed, self.layers, self.norm = of.model.embed_tokens, of.model.layers, of.model.norm
        self.rotary_emb, self.lm_head = of.model.rotary_emb, of.lm_head

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask=None, use_cache=True, logits_to_keep=0, **given):
        x, cache = self.embed(input_ids), given_cache(given)
        cache = DynamicCache(config=self.config) if cache is None and use_cache else cache
        more, past = {CACHE_ARGUMENT: cache}, 0 if cache is None else cache.get_seq_length()
        at = torch.arange(past, past + x.shape[1])[None]
        mask = create_causal_mask(self.config, x, attention_mask=attention_mask, position_ids=at, **more)
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_embeddings=self.rotary_emb(x, at), **more)
        return CausalLMOutputWithPast(logits=self.lm_head(self.norm(x)[:, -logits_to_keep:]), **more)


def test_a_decoder_with_its_head_computes_the_logits_that_are_asked_for():
    model, ids = OneClass(make("llama")).eval(), prompts(1, 40)
    assert len(longspan.extend(model, "dca").attached) == 2
    whole = model(ids).logits
    last = model(ids, logits_to_keep=3).logits
    assert whole.shape[1] == 40 and last.shape[1] == 3
    torch.testing.assert_close(last, whole[:, -3:], rtol=0, atol=1e-5)
