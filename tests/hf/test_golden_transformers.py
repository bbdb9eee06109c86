"""DCA on a transformers model equals the outputs of its authors' released code."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import longspan

GOLDEN = Path(__file__).parents[1] / "golden" / "chunkllama.safetensors"


@pytest.fixture(scope="module")
def golden():
    tensors = load_file(GOLDEN)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict({name[2:]: value for name, value in tensors.items() if name.startswith("w.")})
    longspan.extend(model, longspan.DCA(chunk_size=40, local_window=9, window=49))
    return model, tensors


@torch.no_grad()
def test_prefill(golden):
    model, tensors = golden
    assert (model(tensors["input_ids"]).logits - tensors["logits"]).abs().max() < 2e-5


@torch.no_grad()
@pytest.mark.parametrize("piece", [1, 7, 40, 49, 130])
def test_pieces(golden, piece):
    model, tensors = golden
    cache = longspan.new_cache(model)
    parts = [model(ids, past_key_values=cache).logits for ids in tensors["input_ids"].split(piece, dim=1)]
    assert (torch.cat(parts, dim=1) - tensors["logits"]).abs().max() < 2e-5


@torch.no_grad()
def test_decode(golden):
    model, tensors = golden
    cache = longspan.new_cache(model)
    ids = tensors["input_ids"]
    steps = [model(ids[:, :250], past_key_values=cache).logits[:, -1:]]
    steps += [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(250, 300)]
    assert (torch.cat(steps, dim=1) - tensors["decode_logits"]).abs().max() < 2e-5
