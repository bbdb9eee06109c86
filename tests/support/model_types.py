"""The types of causal models in transformers, each as a tiny random model."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as MODELS

from support.hf_models import VOCABULARY, WINDOW

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads")
_WIDE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim")
_NARROW = ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "q_lora_rank")
_OF_HEADS = ("head_dim", "v_head_dim", "index_head_dim", "linear_head_dim", "linear_key_head_dim", "kv_lora_rank")

# What a config's sizes become where it has them.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), WINDOW),
    **dict.fromkeys(_WIDE, 96),
    **dict.fromkeys(_NARROW, 32),
    **dict.fromkeys((*_OF_HEADS, "linear_value_head_dim", "mamba_d_state", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys((*_HEADS, *_EXPERTS, "mamba_n_heads", "linear_num_heads"), 4),
    **dict.fromkeys((*_LAYERS, *_CHOSEN_EXPERTS, "num_key_value_heads", "index_n_heads"), 2),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "mamba_expand", "eos_token_id"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace", "mamba_n_groups"), 1),
    "mamba_d_head": 32, "index_topk": 16, "sliding_window": 32, "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip

_EVERYWHERE = {"sliding_window": None}
_LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
_CONV_FIRST = {"layer_types": ["conv", "full_attention"]}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_OF_DBRX = {"kv_n_heads": 2, "rope_theta": 10000.0, "moe_num_experts": 4, "moe_top_k": 2, "clip_qkv": 8.0}
_OF_OTHERS = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_blocks": 1}
_OF_KIMI = {"num_key_value_heads": 4}

# Sizes that a config holds to each other, or for which it has no default.
_OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_experts": 8, "layer_group_size": 2, **_OF_KIMI},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "cohere_compass_text": {"rope_parameters": {"sliding_attention": _PLAIN, "full_attention": None}},
    "dbrx": {"attn_config": _OF_DBRX, "ffn_config": {**_OF_DBRX, "hidden_size": 64, "ffn_hidden_size": 32}},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "gemma3n_text": {"num_kv_shared_layers": 0, "laurel_rank": 8, "activation_sparsity_pattern": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": _OF_KIMI,
    "lfm2": _CONV_FIRST,
    "lfm2_moe": _CONV_FIRST,
    "llama4_text": {"no_rope_layers": [1, 0]},
    "longcat_flash": {"zero_expert_num": 2, "head_dim": 8},
    "minimax": _LINEAR_FIRST | _EVERYWHERE,
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "ministral": {"layer_types": ["full_attention"] * 2},
    "ministral3": _EVERYWHERE,
    "mistral": _EVERYWHERE,
    "mixtral": _EVERYWHERE,
    "phi3": _EVERYWHERE,
    "phi4_multimodal": {"sliding_window": None, "vision_config": _OF_OTHERS, "audio_config": _OF_OTHERS},
    "phimoe": _EVERYWHERE,
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 200,
        "hc_lowrank": 8,
        "ple_embed_dim": 32,
        "split_ngram_parts": 4,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 64},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "starcoder2": _EVERYWHERE,
    "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layer_types": ["mamba", "hybrid", "hybrid"], "num_hidden_layers": 3},
    "zamba2": {"layer_types": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1},
}


def _decoder(name: str) -> type[PretrainedConfig]:
    return type(CONFIG_MAPPING[name]().get_text_config(decoder=True))


@cache  # it makes a config of each
def types() -> set[str]:
    """The model types, but for models around a decoder that is one of them, and those that no sizes make small."""
    with_text = set(MODELS) - {"blt", "moshi", "musicgen", "musicgen_melody", "gemma4_assistant"}
    return {name for name in with_text if _decoder(name).model_type not in with_text - {name}}


def make_type(name: str) -> PreTrainedModel:
    """A random model of a model type in fp32, with window 64 and two layers, or one of each kind of layer."""
    config = _decoder(name)
    torch.manual_seed(0)
    model = getattr(transformers, MODELS[name])._from_config(config(**_sizes(config))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # the initial values leave little that attention could change
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def _sizes(config: type[PretrainedConfig]) -> dict[str, Any]:
    default = config().to_dict()
    sizes = {name: size for name, size in _SMALL.items() if name in default}
    if "qk_rope_head_dim" in default:  # a latent that keys and values of all heads are made from
        sizes |= {"num_key_value_heads": 4}
        sizes.pop("head_dim", None)
    kinds = {name: list(dict.fromkeys(default.get(name) or ())) for name in ("layer_types", "mlp_layer_types")}
    layers = max(2, *map(len, kinds.values()))
    for name, of_layers in kinds.items():
        if of_layers:
            sizes |= {name: (of_layers * layers)[:layers], "num_hidden_layers": layers}
    return sizes | _OWN.get(config.model_type, {})
