"""A random Llama, small enough to run hundreds of times."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from longspan.bundled import FOLDER

VOCABULARY = json.loads((FOLDER / "config.json").read_text())["vocab_size"]  # of the bundled model


def small_llama(window: int, **sizes: Any) -> LlamaForCausalLM:
    """The model of these sizes of its config, the same each time."""
    torch.manual_seed(0)
    own = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.5,
    }
    return LlamaForCausalLM(LlamaConfig(**{**own, "max_position_embeddings": window, **sizes})).eval()
