"""InfLLM and LM-Infinite's middle tokens in a model of transformers."""

import pytest
import torch

import longspan
from longspan.methods import InfLLM, LMInfinite
from support.hf_models import make, prompts


@torch.no_grad()
@pytest.mark.parametrize("method", [InfLLM(), LMInfinite(sinks=2, recent=30, middle_top_k=3, from_layer=1)], ids=str)
def test_dropped_tokens_leave_no_trace(method):
    """Assisted decoding drops what the model does not accept."""
    model, ids = make("llama"), prompts(2, 150)
    longspan.extend(model, method)
    straight, winding = longspan.new_cache(model), longspan.new_cache(model)
    for cache in (straight, winding):
        model(ids[:, :140], past_key_values=cache)
    model(ids[:, 20:40], past_key_values=winding)
    winding.crop(-20)
    outs = [model(ids[:, 140:], past_key_values=cache).logits for cache in (straight, winding)]
    assert (outs[0] - outs[1]).abs().max() < 1e-5


def test_middle_tokens_in_no_layer():
    model = make("llama")
    with pytest.raises(longspan.AttachError, match="lm-infinite chooses keys in no layer.*smaller from_layer"):
        longspan.extend(model, LMInfinite(middle_top_k=5, from_layer=model.config.num_hidden_layers))
    longspan.extend(model, LMInfinite())
