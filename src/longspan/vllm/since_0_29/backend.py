"""vLLM's attention backend, metadata builder and implementation, for layers that longspan is attached to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

from longspan.errors import LongspanError
from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import Step
from longspan.rope import Rope
from longspan.vllm.settings import check_page_size


class LongspanBackend(AttentionBackend):
    """Pages in which each key head's tokens lie together."""

    forward_includes_kv_cache_update = True  # keys are rotated as they are written
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's name for backends of plugins

    @staticmethod
    def get_impl_cls() -> type[LongspanImpl]:
        return LongspanImpl

    @staticmethod
    def get_builder_cls() -> type[LongspanMetadataBuilder]:
        return LongspanMetadataBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)


class LongspanChoosingBackend(LongspanBackend):
    """The same with room behind each page for the bounds of chunks."""

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        one_token = spec.num_heads * spec.state_content_size_bytes
        return replace(spec, page_size_padded=spec.unpadded_page_size_bytes + one_token)


class LongspanMetadataBuilder(AttentionMetadataBuilder[Step]):
    """From vLLM's block tables to what each new token sees."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names)
        attention = next(iter(layers.values())).impl.attention
        self._tables, self._size = attention.tables, kv_cache_spec.block_size
        check_page_size(attention.selection, self._size)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Step:
        common = common_attn_metadata
        if common.causal is not True:
            raise LongspanError("longspan in vLLM: attention that is not causal is not supported; leave longspan out")
        starts, lengths = common.query_start_loc_cpu.tolist(), common.seq_lens.tolist()
        rows = [n for n in range(len(lengths)) if starts[n + 1] > starts[n]]
        # The numbers of pages stay where they are: what a step takes from the host does not grow with the texts.
        table = common.block_table_tensor
        table = table[: len(rows)] if len(rows) == len(lengths) else table[torch.tensor(rows, dtype=torch.int64)]
        requests = [
            NewTokens(starts[n], lengths[n] - (starts[n + 1] - starts[n]), starts[n + 1] - starts[n], pages)
            for n, pages in zip(rows, table.unbind(), strict=True)
        ]
        slots = Slots.of(common.slot_mapping[: starts[-1]], self._size)
        return Step(self._tables, requests, slots, self._size, table)


class LongspanImpl(AttentionImpl[Step]):
    """One layer.

    Args:
        attention: the method, of all layers.
        rope: how the layer rotates queries and keys.
        stock: vLLM's own implementation for this layer, for the facts that it was built with.
        longest: tokens of the longest text.
    """

    def __init__(self, attention: PagedAttention, rope: Rope, stock: Any, longest: int) -> None:
        self.attention, self.rope, self.longest = attention, rope, longest
        self.num_heads, self.head_size, self.num_kv_heads = stock.num_heads, stock.head_size, stock.num_kv_heads
        self.scale, self.softcap = float(stock.scale), stock.logits_soft_cap or None
        self.attn_type, self.kv_cache_dtype = AttentionType.DECODER, stock.kv_cache_dtype
        self.sliding_window = self.alibi_slopes = self.sinks = self.kv_sharing_target_layer_name = None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Step | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """``[T, H, D]`` queries, ``[T, Hkv, D]`` keys and values, unrotated, to ``output`` ``[T, H, D]``."""
        if output_scale is not None or output_block_scale is not None:
            raise LongspanError("longspan in vLLM: a quantised output is not supported; leave its fusion pass off")
        if attn_metadata is None:  # vLLM measures how much memory a step takes
            self.attention.reserve(query, self.num_kv_heads, self.longest)
            return output.zero_()
        if kv_cache.shape[2] != attn_metadata.size:
            raise LongspanError(
                f"longspan in vLLM: pages of {kv_cache.shape[2]} tokens were announced as {attn_metadata.size}; pass "
                f"--block-size {kv_cache.shape[2]}"
            )
        try:
            self.attention(
                query, key, value, kv_cache, attn_metadata, output, self.rope, scale=self.scale, softcap=self.softcap
            )
        except LongspanError as error:
            raise type(error)(f"longspan in vLLM: {error}") from error
        return output
