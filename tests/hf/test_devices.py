"""A model whose layers are spread over devices by ``device_map``: the same tokens as on one, under every method."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import longspan
from longspan.methods import METHODS, Method
from support.hf_models import left_padded, make, prompts

pytest.importorskip("accelerate")

CASES: dict[str, str | Method] = {
    **{name: name for name in METHODS},
    "lm-infinite with middle tokens": longspan.LMInfinite(middle_top_k=5, from_layer=0),
    "longheads by layer": longspan.LongHeads(share="layer", score="token_max"),
    "longheads in DCA": longspan.LongHeads(score="bounds", remap="dca"),
    "esa in slots": longspan.ESA(remap="slots", share="group"),
}
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def spread(folder, first, second):
    """The tiny Llama of two layers with each on its device; the embedding and the head are with the first one."""
    make("llama").save_pretrained(folder / "model")
    where = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.rotary_emb", "lm_head"), first)
    where |= {"model.layers.1": second, "model.norm": first}
    return AutoModelForCausalLM.from_pretrained(
        folder / "model", device_map=where, offload_folder=str(folder / "weights")
    ).eval()


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """Weights of the second layer lie in files; accelerate brings them for each forward."""
    return spread(tmp_path_factory.mktemp("spread"), "cpu", "disk")


@pytest.fixture(scope="module")
def whole():
    return make("llama")


def answers(model, method):
    """Tokens of a left-padded batch, and logits of a prompt with two tokens that come one at a time."""
    ids, mask, _ = left_padded(prompts().repeat(1, 4), [7, 0])
    device = model.get_input_embeddings().weight.device
    longspan.extend(model, method, length=ids.shape[1] + 6)
    options = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None, "do_sample": False}
    tokens = model.generate(ids.to(device), attention_mask=mask.to(device), **options).cpu()
    cache, ids = longspan.new_cache(model), ids[1:].to(device)
    with torch.no_grad():
        parts = ids[:, :-2], ids[:, -2:-1], ids[:, -1:]
        logits = [model(x, past_key_values=cache).logits.cpu() for x in parts]
    longspan.restore(model)
    return tokens, torch.cat(logits, dim=1), cache


@pytest.mark.parametrize("name", CASES)
def test_a_layer_in_files(on_disk, whole, name):
    assert any(weight.device.type == "meta" for weight in on_disk.parameters())
    tokens, logits, _ = answers(on_disk, CASES[name])
    tokens_expected, logits_expected, _ = answers(whole, CASES[name])
    assert torch.equal(tokens, tokens_expected)
    assert torch.allclose(logits, logits_expected, atol=1e-5)


@pytest.mark.skipif(not GPUS, reason="needs a GPU beside the CPU")
@pytest.mark.parametrize("second", ["cpu", *(f"cuda:{n}" for n in range(1, min(GPUS, 2)))])
@pytest.mark.parametrize("name", CASES)
def test_each_layer_on_its_device(whole, name, second, tmp_path):
    """Not only results: keys, values and what chooses among them are where their layer runs.

    accelerate brings the weights of a layer that is mapped to the CPU to the GPU for each forward.
    """
    runs = "cuda:0" if second == "cpu" else second
    model = spread(tmp_path, "cuda:0", second)
    tokens, logits, cache = answers(model, CASES[name])
    tokens_expected, logits_expected, _ = answers(whole, CASES[name])
    assert torch.equal(tokens, tokens_expected)
    assert torch.allclose(logits, logits_expected, atol=1e-3)
    for store, device in zip(cache.stores, ("cuda:0", runs), strict=True):
        kept = [*store.allocated, *(store.index.state() if store.index is not None else ())]
        assert {x.device for x in kept} == {torch.device(device)}
