"""longspan on a model as vLLM builds it: each layer is checked, and its rotation and attention are replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.rotary_embedding import (
    Llama3RotaryEmbedding,
    NTKScalingRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding
from vllm.v1.attention.backend import AttentionType

from longspan.errors import AttachError
from longspan.methods import Method
from longspan.model.describe import describe_kernels
from longspan.model.report import LayerReport, Report
from longspan.model.window import trained_on
from longspan.paged.attention import PagedAttention
from longspan.paged.supported import check_pages
from longspan.rope import Rope, Table
from longspan.vllm import source
from longspan.vllm.settings import Settings, paged
from longspan.vllm.since_0_29.backend import LongspanBackend, LongspanChoosingBackend, LongspanImpl
from longspan.vllm.unrotated import Unrotated

_PLAIN = (RotaryEmbedding, Llama3RotaryEmbedding, NTKScalingRotaryEmbedding)
_CHECKED_POSITIONS = (0, 1, 2, 3, 5, 17, 100, 255)
_OUT = "start vLLM with --additional-config '{\"longspan\": null}' to run it without longspan"


def attach(model: nn.Module, vllm_config: VllmConfig, model_config: Any, settings: Settings) -> Report:
    """Let all attention layers of a model run a method.

    Raises:
        AttachError: the method, the engine's settings or a layer cannot; the model is unchanged.
    """
    name, config = type(model).__name__, model_config.hf_text_config
    try:
        trained = trained_on(config, settings.window, model=name)
    except AttachError as error:
        raise AttachError(f"{error}; {_OUT}") from error
    longest = model_config.max_model_len
    wanted, notes = paged(settings.method.reaching(longest), trained.dual_chunks)
    method = trained.resolve(wanted)
    try:
        check_pages(method, trained.window)
    except AttachError as error:
        raise AttachError(f"longspan in vLLM: {error}") from error
    if (reason := _engine_reason(vllm_config, method)) is not None:
        raise AttachError(f"longspan in vLLM: {reason}")
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, AttentionLayerBase)]
    if not layers:
        raise AttachError(f"{name} has no attention layer that longspan knows; {_OUT}")
    kernels, note = describe_kernels(settings.impl, next(model.parameters()).device)
    attention = PagedAttention(method, trained.window, settings.impl)
    ropes: dict[int, Rope] = {}
    changes: dict[str, tuple[Any, nn.Module, str, LongspanImpl]] = {}
    for path, layer in layers:
        if isinstance(getattr(layer, "impl", None), LongspanImpl):
            continue  # of a model inside this one, which vLLM builds by the same function
        if (reason := _layer_reason(layer, model_config.dtype)) is not None:
            raise AttachError(f"{path}: {reason}; {_OUT}")
        parent, own = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        rotary = _rotary(path, parent, own)
        module = getattr(parent, rotary)
        if id(module) not in ropes:
            ropes[id(module)] = _rope(path, module)
        changes[path] = layer, parent, rotary, LongspanImpl(attention, ropes[id(module)], layer.impl, longest)
    backend = LongspanBackend if attention.selection is None else LongspanChoosingBackend
    for layer, parent, rotary, impl in changes.values():
        layer.attn_backend, layer.impl = backend, impl
        setattr(parent, rotary, Unrotated())
    limit = method.longest(trained.window)
    too_long = (
        []
        if limit is None or longest <= limit
        else [f"max_model_len {longest} is more than the {limit} tokens it is set for"]
    )
    return Report(
        model=name,
        method=method,
        window=trained.window,
        window_source=trained.source,
        original_window=trained.original,
        attached=tuple(
            LayerReport(n, path, _described(change[3].rope), None, _kv_bytes(change[0]))
            for n, (path, change) in enumerate(changes.items())
        ),
        stock=(),
        warnings=(*trained.notes, *notes, *method.warnings(trained.window), *too_long, *([note] if note else [])),
        reason=settings.reason,
        kernels=kernels,
        decode="keys and values are read in vLLM's pages",
    )


def _engine_reason(vllm_config: VllmConfig, method: Method) -> str | None:
    """The reason why the engine's settings do not fit, or None."""
    parallel = vllm_config.parallel_config
    if vllm_config.speculative_config is not None:
        return "speculative decoding is not supported; leave --speculative-config out"
    if parallel.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported; use --tensor-parallel-size"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism is not supported; use --tensor-parallel-size"
    if parallel.tensor_parallel_size > 1 and getattr(method, "share", None) == "layer":
        return (
            "share='layer' sums the scores of all heads, but tensor parallelism splits them over processes; use "
            "share='group'"
        )
    if vllm_config.kv_transfer_config is not None:
        return (
            "its keys lie in pages in another rotation than vLLM's own, so no other store may be given them; leave "
            "--kv-transfer-config out"
        )
    return None


def _layer_reason(layer: Any, dtype: torch.dtype) -> str | None:
    """Why a layer cannot run a method, or None."""
    if type(layer) is not Attention:
        return f"longspan runs vLLM's Attention, and this layer is {type(layer).__name__}"
    if layer.attn_type != AttentionType.DECODER:
        return f"longspan runs decoder layers, and this one is of type {layer.attn_type}"
    impl = layer.impl
    facts = {
        "it sees a sliding window": layer.sliding_window is not None,
        "it has ALiBi slopes": getattr(impl, "alibi_slopes", None) is not None,
        "it has sink logits": layer.has_sink,
        "it shares the keys of another layer": layer.kv_sharing_target_layer_name is not None,
        "its values have another size than its keys": layer.head_size_v != layer.head_size,
        "it attends to a prefix in both directions": layer.use_mm_prefix,
        f"its keys and values are stored as {layer.kv_cache_dtype}": layer.kv_cache_torch_dtype != dtype,
        f"{type(impl).__name__} does not say its scale and softcap": not hasattr(impl, "scale")
        or not hasattr(impl, "logits_soft_cap"),
    }
    return next((reason for reason, holds in facts.items() if holds), None)


def _rotary(path: str, parent: nn.Module, attention: str) -> str:
    """The name of the rotation beside a layer; raises ``AttachError`` if it cannot be left to the attention."""
    found = [name for name, module in parent.named_children() if isinstance(module, RotaryEmbeddingBase)]
    if len(found) != 1:
        count = "no rotation" if not found else f"{len(found)} rotations"
        raise AttachError(f"{path}: {count} of queries and keys beside this layer; {_OUT}")
    if (reason := source.unsupported_reason(parent, found[0], attention)) is not None:
        raise AttachError(f"{path}: {reason}; {_OUT}")
    return found[0]


def _rope(path: str, rotary: Any) -> Rope:
    """A rotation in longspan's terms."""
    kind = type(rotary)
    if kind in _PLAIN:
        table = Table(rotary._compute_inv_freq(rotary.base))
    elif kind is YaRNScalingRotaryEmbedding:
        table = Table(rotary._compute_inv_freq(rotary.scaling_factor), rotary.mscale)
    elif kind is LinearScalingRotaryEmbedding and len(rotary.scaling_factors) == 1:
        table = Table(rotary._compute_inv_freq(rotary.base) / rotary.scaling_factors[0])
    else:
        raise AttachError(f"{path}: longspan does not know the rotation {kind.__name__}; {_OUT}")
    rows = torch.tensor([n for n in _CHECKED_POSITIONS if n < len(rotary.cos_sin_cache)], device="cpu")
    stated = rotary.cos_sin_cache[rows.to(rotary.cos_sin_cache.device)].float()
    near = 1e-3 if rotary.cos_sin_cache.dtype == torch.float32 else 1e-2
    if not torch.allclose(torch.cat(table(rows), dim=-1).to(stated), stated, atol=near * table.factor, rtol=0):
        raise AttachError(f"{path}: the angles of {kind.__name__} are not those that longspan expects; {_OUT}")
    return Rope(table, rotary.head_size, "half" if rotary.is_neox_style else "interleaved")


def _described(rope: Rope) -> str:
    part = "all" if rope.rotated == rope.head_dim else f"{rope.rotated} of {rope.head_dim}"
    return f"{rope.layout} layout, {part} channels"


def _kv_bytes(layer: Any) -> int:
    return 2 * int(layer.num_kv_heads) * int(layer.head_size) * int(layer.kv_cache_torch_dtype.itemsize)
