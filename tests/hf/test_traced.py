"""A model that is traced or transformed as a function: refused, where a graph would hold the numbers of one text."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import longspan
from support.hf_models import make, prompts

pytestmark = pytest.mark.hostile


class Logits(nn.Module):
    """What tracers want: tensors in, one tensor out."""

    def __init__(self, model, **given):
        super().__init__()
        self.model, self.given = model, given

    def forward(self, ids):
        return self.model(ids, use_cache=False, **self.given).logits


TRACED = {
    "jit": lambda model, ids: torch.jit.trace(Logits(model), (ids,), check_trace=False),
    "jit, with a mask": lambda model, ids: torch.jit.trace(
        Logits(model, attention_mask=torch.ones_like(ids)), (ids,), check_trace=False
    ),
    "export": lambda model, ids: torch.export.export(Logits(model), (ids,), strict=False),
}


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
@pytest.mark.parametrize("how", TRACED)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@torch.no_grad()
def test_a_trace_is_refused(how, family):
    model, ids = make(family), prompts(1, 80)
    longspan.extend(model, "dca")
    want = model(ids).logits
    with pytest.raises(longspan.LongspanError, match=r"is being traced .*longspan\.restore"):
        TRACED[how](model, ids)
    assert torch.equal(model(ids).logits, want)


@pytest.mark.parametrize("tokens", [1, 4])
@torch.no_grad()
def test_a_tangent_is_refused(tokens):
    """A single token is one call of C a layer, which gave a derivative that was none."""
    model, ids = make("llama"), prompts(1, 80)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    model(ids, past_key_values=cache)
    embeds = model.get_input_embeddings()(ids[:, :tokens])
    with forward_ad.dual_level():
        model(inputs_embeds=embeds, past_key_values=cache)
        cache.crop(-tokens)
        dual = forward_ad.make_dual(embeds, torch.ones_like(embeds))
        with pytest.raises(longspan.LongspanError, match="forward_ad"):
            model(inputs_embeds=dual, past_key_values=cache)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_a_function_that_is_transformed_is_refused(transform):
    model, ids = make("llama"), prompts(2, 80)
    longspan.extend(model, "dca")

    def loss(embeds):
        return model(inputs_embeds=embeds, use_cache=False).logits.sum()

    with pytest.raises(longspan.LongspanError, match=r"torch\.func"):
        transform(loss)(model.get_input_embeddings()(ids)[:, None].detach())
