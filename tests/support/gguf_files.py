"""Small GGUF files, written from random models of transformers as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from longspan.bundled import FOLDER

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
ARCHITECTURES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": lambda **given: Qwen3Config(**given, head_dim=32),
    "phi3": Phi3Config,
    "gemma3": lambda **given: Gemma3TextConfig(**given, head_dim=32, sliding_window=32),
}


def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and kinds of tokens of the bundled model's tokenizer, which is byte-level."""
    written = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    ids = dict(written["model"]["vocab"])
    added = {each["content"]: each["id"] for each in written["added_tokens"]}
    ids |= added
    tokens = sorted(ids, key=lambda token: ids[token])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in written["model"]["merges"]]
    return tokens, merges, [3 if token in added else 1 for token in tokens]


def random_model(architecture: str, **changed: Any) -> PreTrainedModel:
    """In fp64, of the bundled tokenizer's vocabulary."""
    torch.manual_seed(0)
    config = ARCHITECTURES[architecture](**{**_SIZES, "vocab_size": len(vocabulary()[0]), **changed})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()


def write(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    *,
    kind: Kind = Kind.F32,
    stated: dict[str, Any] | None = None,
    pre: str = "gpt-2",
    skip: tuple[str, ...] = (),
    more: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a model.

    Args:
        kind: of the matrices; vectors are F32.
        stated: further metadata, or other values of it by the names that the file has; None leaves one out.
        pre: by which rule the tokenizer splits.
        skip: tensors that are left out.
        more: further tensors.
    """
    file = gguf.GGUFWriter(path, architecture)
    for key, value in {**_metadata(model, architecture), **(stated or {})}.items():
        if value is not None:
            add = file.add_string if isinstance(value, str) else file.add_float32 if isinstance(value, float) else None
            (add or file.add_uint32)(key, value)
    tokens, merges, kinds = vocabulary()
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    file.add_token_list(tokens)
    file.add_token_merges(merges)
    file.add_token_types(kinds)
    file.add_bos_token_id(0)
    file.add_eos_token_id(1)
    file.add_pad_token_id(1)
    file.add_add_bos_token(True)
    file.add_chat_template(TEMPLATE)
    for name, values in {**tensors(model, architecture), **(more or {})}.items():
        if name not in skip:
            own = kind if values.ndim > 1 else Kind.F32
            data = gguf.quantize(values.astype(np.float32), own)
            file.add_tensor(name, data, raw_dtype=own)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def _metadata(model: PreTrainedModel, architecture: str) -> dict[str, Any]:
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ropes = config.rope_parameters.get("full_attention", config.rope_parameters)
    own = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(ropes["rope_theta"]),
    }
    own |= {"rope.dimension_count": head} if architecture in ("llama", "phi3") else {}
    own |= {"attention.key_length": head, "attention.value_length": head} if architecture in ("qwen3", "gemma3") else {}
    own |= {"attention.sliding_window": config.sliding_window} if architecture == "gemma3" else {}
    return {f"{architecture}.{name}": value for name, value in own.items()}


def tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The weights by llama.cpp's names, in fp64."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    found = {}
    for name, weight in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = weight.numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = model.config.num_attention_heads if ".q_proj." in name else model.config.num_key_value_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)  # llama.cpp rotates neighbours
        if architecture == "gemma3" and "norm" in name:
            values = values + 1
        found[f"{names.get_name(stem)}.{suffix}"] = values
    return found


def dequantised(model: PreTrainedModel, architecture: str, kind: Kind) -> PreTrainedModel:
    """The model in fp64 with its matrices as a file of this kind states them."""
    changed = {
        name: gguf.dequantize(gguf.quantize(values.astype(np.float32), kind), kind).astype(np.float64)
        for name, values in tensors(model, architecture).items()
        if values.ndim > 1
    }
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    state = {}
    for name, weight in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        key = f"{names.get_name(stem)}.{suffix}"
        values = changed.get(key)
        if values is None:
            state[name] = weight.float().double()
            continue
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = model.config.num_attention_heads if ".q_proj." in name else model.config.num_key_value_heads
            pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        state[name] = torch.from_numpy(np.ascontiguousarray(values))
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model
