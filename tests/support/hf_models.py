"""Tiny random models of many families, all with window 64."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import longspan

WINDOW = 64
VOCABULARY = 128
STEPS = 7
ALTERNATING = ["sliding_attention", "full_attention"]

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# name → (model type, what differs from the common sizes)
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-sliding": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": None}),
    "gemma2": ("gemma2", {"sliding_window": 16, "layer_types": ALTERNATING}),
    "gemma3_text": ("gemma3_text", {"sliding_window": 16, "layer_types": ALTERNATING}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", {"attention_multiplier": 0.25}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "cohere2": ("cohere2", {"sliding_window": 16, "layer_types": ALTERNATING}),
    "glm4": ("glm4", {}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.25}),
    "gpt_oss": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": ALTERNATING,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 2.0,
                "original_max_position_embeddings": WINDOW // 2,
            },
        },
    ),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.25}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "nanochat": ("nanochat", {}),
    "cohere": ("cohere", {}),
    "nemotron": ("nemotron", {}),
}

# Families in which every layer stays stock by its nature: sliding windows, or no positions in the full layers.
NOTHING_TO_ATTACH = {"mistral-sliding", "cohere2"}


def make(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model whose norms and sinks are not at their initial values, so that their place matters."""
    kind, own = FAMILIES[name]
    return build(kind, {**_COMMON, **own}, "eager" if kind == "gemma2" else None).to(dtype)


def build(kind: str, sizes: dict, attention: str | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    # Eager, because under sdpa some versions of transformers leave out gemma2's softcap.
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes), attn_implementation=attention).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("sinks"):
                parameter.normal_()
    return model


def falcon() -> PreTrainedModel:
    """Rotary positions, but attention in the model's own code."""
    sizes = {k: v for k, v in _COMMON.items() if k not in ("head_dim", "intermediate_size", "num_key_value_heads")}
    return build("falcon", {**sizes, "alibi": False})


def falcon_h1() -> PreTrainedModel:
    """Rotary positions in layers whose cache holds a state beside keys and values."""
    return build("falcon_h1", {**_COMMON, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 8})


def gpt2() -> PreTrainedModel:
    """Learned positions."""
    return build("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": WINDOW})


def doge() -> PreTrainedModel:
    """Rotary positions, and a mask of its own that is made from the values."""
    return build("doge", _COMMON)


def minimax() -> PreTrainedModel:
    """Rotary positions, and layers between that keep states of their own in the cache."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16}
    return build("minimax", {**_COMMON, **experts, "layer_types": ["linear_attention", "full_attention"]})


def gemma3n() -> PreTrainedModel:
    """Layers 4 and 5 attend to the keys of layers 2 and 3, and have none of their own in the cache."""
    sizes = {"num_hidden_layers": 6, "layer_types": ALTERNATING * 3, "sliding_window": 16, "num_kv_shared_layers": 2}
    others = {"laurel_rank": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}
    return build("gemma3n_text", {**_COMMON, **sizes, **others})


def gemma4() -> PreTrainedModel:
    """As Gemma 3n, but layers 4 and 5 are given the last tokens alone where only their logits are asked for."""
    sizes = {"num_hidden_layers": 6, "layer_types": ALTERNATING * 3, "sliding_window": 16, "num_kv_shared_layers": 2}
    others = {"global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}
    return build("gemma4_text", {**_COMMON, **sizes, **others})


def qwen3_next() -> PreTrainedModel:
    """Layer 1 is attached, and layer 0 keeps a state that every token goes into."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    heads = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    dims = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32}
    return build(
        "qwen3_next", {**_COMMON, **experts, **heads, **dims, "layer_types": ["linear_attention", "full_attention"]}
    )


def lfm2() -> PreTrainedModel:
    """Layer 1 is attached, and layer 0 keeps what a convolution of three tokens saw last."""
    return build("lfm2", {**_COMMON, "layer_types": ["conv", "full_attention"]})


def gemma3_with_images() -> PreTrainedModel:
    """Gemma 3 as its checkpoints come: a model around the decoder, with images, that makes the decoder's masks."""
    sight = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**_COMMON, "sliding_window": 16, "layer_types": ALTERNATING}
    tokens = {"image_token_index": 100, "boi_token_index": 101, "eoi_token_index": 102, "mm_tokens_per_image": 4}
    return build(
        "gemma3", {"text_config": text, "vision_config": {**sight, "image_size": 28, "patch_size": 14}, **tokens}
    )


def mllama() -> PreTrainedModel:
    """Llama 3.2 with images: layer 1 attends to images alone, and a text leaves it out."""
    text = {**_COMMON, "model_type": "mllama_text_model", "num_hidden_layers": 3, "cross_attention_layers": [1]}
    sight = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "attention_heads": 2}
    sight |= {"num_global_layers": 1, "image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0]}
    config = CONFIG_MAPPING["mllama"](text_config=text, vision_config={**sight, "vision_output_dim": 64})
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


def around_a_decoder(kind: str, decoder: str) -> PreTrainedModel:
    """Idefics 2 or 3, or SmolVLM: a model around the decoder, with images, that makes a cache where none is passed."""
    sight = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"text_config": {**_COMMON, "model_type": decoder, "sliding_window": None}, "image_token_id": 100}
    config = CONFIG_MAPPING[kind](**sizes, vision_config={**sight, "image_size": 28, "patch_size": 14})
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


def prompts(rows: int = 2, tokens: int = 40, seed: int = 0) -> torch.Tensor:
    """Random ids ``[rows, tokens]`` without special tokens."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def left_padded(ids: torch.Tensor, pads: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``ids`` with the first ``pads`` tokens of each row as padding, the mask, and each token's own position."""
    ids, mask = ids.clone(), torch.ones_like(ids)
    for row, pad in enumerate(pads):
        ids[row, :pad], mask[row, :pad] = 0, 0
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def greedy_steps(
    model: PreTrainedModel, ids: torch.Tensor, count: int = STEPS, mask: torch.Tensor | None = None, cache: Any = None
) -> tuple[torch.Tensor, Any]:
    """Logits of the prompt's last token and of ``count - 1`` greedy ones, and the cache."""
    cache = longspan.new_cache(model) if cache is None else cache
    found = []
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=ids, attention_mask=mask, past_key_values=cache).logits[:, -1:]
            found.append(logits)
            ids = logits.argmax(dim=-1)
            mask = mask if mask is None else torch.cat((mask, torch.ones_like(ids)), dim=1)
    return torch.cat(found, dim=1), cache
