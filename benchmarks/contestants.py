"""Who is compared: attention and cache of some layers of one shape, as longspan, transformers and kvpress run them.

Each takes the unrotated q, k, v of new tokens and gives the attention of its layers, one after the other, over what it
holds. Weights and norms are the same for all of them and are left out.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

from common import blocks, version
from longspan.attend import Attender, ForwardState, RecordedStep
from longspan.attend.layer import LayerCall
from longspan.calibration import Calibration, Projection
from longspan.hf.graphs import record
from longspan.memory import KVStore
from longspan.methods import ESA, Full, LongHeads, Method
from longspan.methods.dca import DCA
from longspan.rope import Rope, Table

QKV = tuple[Tensor, Tensor, Tensor]
ROOM = 256  # tokens that a recording has room for
BLOCK = 8192  # tokens made, stored and summarised at a time


@dataclass(frozen=True)
class Shape:
    """Attention of ``layers`` layers; Llama-3-8B's has 32 heads, 8 key-value heads of 128, and a window of 8,192."""

    heads: int = 32
    kv_heads: int = 8
    width: int = 128
    layers: int = 2
    window: int = 8192
    base: float = 500_000.0

    @property
    def scale(self) -> float:
        return float(self.width**-0.5)

    def frequencies(self, device: str = "cpu") -> Tensor:
        steps = torch.arange(0, self.width, 2, dtype=torch.float64, device=device)
        return (1.0 / self.base ** (steps / self.width)).float()

    def rope(self, device: str = "cpu") -> Rope:
        return Rope(Table(self.frequencies(device)), self.width)

    def qkv(self, tokens: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> QKV:
        """Random q, k, v: ``[1, H, tokens, D]``, twice ``[1, Hkv, tokens, D]``."""
        g = torch.Generator(device).manual_seed(seed)
        q, k, v = (
            torch.randn(1, h, tokens, self.width, generator=g, dtype=dtype, device=device)
            for h in (self.heads, self.kv_heads, self.kv_heads)
        )
        return q, k, v


@cache
def random_block(shape: Shape, dtype: torch.dtype, device: str) -> QKV:
    """What stores are filled with, made once for all contestants of a process."""
    return shape.qkv(BLOCK, dtype, device, seed=1)


class Contestant:
    """One way of running the attention of ``shape.layers`` layers."""

    def __init__(self, name: str, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> None:
        self.name, self.shape, self.dtype, self.device = name, shape, dtype, device

    def fill(self, length: int) -> None:
        """Hold ``length`` random tokens, without a prefill."""
        self.clear()
        made = random_block(self.shape, self.dtype, self.device)
        for n, (a, b) in enumerate(blocks(length, BLOCK)):
            # Other numbers in every channel are other keys, and cheaper than new random ones.
            q, k, v = (x[:, :, : b - a].roll(n, dims=-1) for x in made)
            self.hold(q, k, v)

    def hold(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Hold nothing."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``[1, H, T, D]`` of the last layer."""
        raise NotImplementedError


class Flash(Contestant):
    """Torch's causal flash attention alone: no rotation, no cache; what a prefill cannot do without."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for _ in range(self.shape.layers):
            out = self._attend(q, k, v)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.device == "cpu":
            run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            return run(q, k, v, 0.0, True, scale=self.shape.scale)[0]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            attention = nn.functional.scaled_dot_product_attention
            return attention(q, k, v, is_causal=q.shape[2] > 1, scale=self.shape.scale, enable_gqa=True)


class FlashDecode(Flash):
    """Torch's flash attention of one new token over keys that lie ready: what decoding on a GPU cannot do without."""

    def fill(self, length: int) -> None:
        self.held = [self.shape.qkv(length, self.dtype, self.device, seed=n)[1:] for n in range(self.shape.layers)]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for keys, values in self.held:
            out = self._attend(q, keys, values)
        return out


class Stock(Contestant):
    """What transformers runs between the projections, with YaRN: its rotation, ``DynamicCache``, sdpa."""

    factor = 8.0  # how many windows YaRN is made for

    def __init__(self, name: str, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__(name, shape, dtype, device)
        self.config = LlamaConfig(
            hidden_size=shape.heads * shape.width,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.width,
            num_hidden_layers=shape.layers,
            max_position_embeddings=int(self.factor * shape.window),
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": shape.base,
                "factor": self.factor,
                "original_max_position_embeddings": shape.window,
            },
            attn_implementation="sdpa",
        )
        self.rotary = LlamaRotaryEmbedding(self.config).to(device)
        with torch.device("meta"):  # only the attributes that the attention function reads
            self.modules = [LlamaAttention(self.config, n).eval() for n in range(shape.layers)]
        self.clear()

    def clear(self) -> None:
        self.cache = DynamicCache()

    def hold(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        for n in range(self.shape.layers):
            self.cache.update(k, v, n)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past = self.cache.get_seq_length()
        cos, sin = self.rotary(q, torch.arange(past, past + q.shape[2], device=self.device)[None])
        for n, module in enumerate(self.modules):
            rotated_q, rotated_k = apply_rotary_pos_emb(q, k, cos, sin)
            keys, values = self.cache.update(rotated_k, v, n)
            out, _ = sdpa_attention_forward(module, rotated_q, keys, values, None, scaling=self.shape.scale)
            self.attended(module, (cos, sin), out)
        return out.transpose(1, 2)

    def attended(self, module: nn.Module, cos_sin: QKV | tuple[Tensor, Tensor], out: Tensor) -> None:
        """After each layer."""


class KVPress(Stock):
    """transformers with kvpress's SnapKV, which cuts the cache to ``budget`` tokens a head after the prefill.

    Its hook is called as a layer's would be. ``cache_position``, which it asks for and transformers 5 no longer hands
    to a layer, is given to it here.
    """

    def __init__(self, name: str, shape: Shape, dtype: torch.dtype, budget: int, device: str = "cpu") -> None:
        super().__init__(name, shape, dtype, device)
        from kvpress import SnapKVPress

        self.budget, self.press = budget, SnapKVPress
        hidden = shape.heads * shape.width
        g = torch.Generator(device).manual_seed(0)
        self.hidden = torch.randn(1, 1, hidden, generator=g, dtype=dtype, device=device)
        for module in self.modules:  # it makes the last queries anew
            module.q_proj = nn.Linear(hidden, hidden, bias=False, dtype=dtype, device=device)

    def fill(self, length: int) -> None:
        """What it leaves of ``length`` tokens; which ones they are does not change what a step costs."""
        super().fill(min(length, self.budget))

    def attended(self, module: nn.Module, cos_sin: Any, out: Tensor) -> None:
        tokens = out.shape[1]
        held = self.cache.layers[module.layer_idx].keys.shape[2]
        if tokens != held or tokens <= self.budget:
            return  # decoding, or nothing to cut
        given = {
            "hidden_states": self.hidden.expand(1, tokens, -1),
            "past_key_values": self.cache,
            "cache_position": torch.arange(tokens, device=self.device),
            "position_embeddings": cos_sin,
        }
        press = self.press(compression_ratio=1 - (self.budget + 0.5) / tokens)
        press.forward_hook(module, [], given, [out, None])


class Longspan(Contestant):
    """``Attender`` with a ``KVStore`` for each layer."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        dtype: torch.dtype,
        method: Method,
        window: int | None = None,
        device: str = "cpu",
        reduced: int | None = None,
    ) -> None:
        super().__init__(name, shape, dtype, device)
        self.window = window or shape.window
        self.method = method.resolve(self.window)
        calibration = random_calibration(reduced, shape.kv_heads * shape.width) if reduced else None
        self.reduced = reduced
        self.attender = Attender(self.method, self.window, calibration=calibration)
        self.rope = shape.rope(device)
        self.clear()

    def clear(self) -> None:
        self.stores = [KVStore() for _ in range(self.shape.layers)]

    def fill(self, length: int) -> None:
        super().fill(length)
        for store in self.stores[1:]:  # the same tokens have the same index, which takes longest to make
            store.index = deepcopy(self.stores[0].index)

    def hold(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        first = self.stores[0]
        if first.index is None:
            first.index = self.attender.new_index(0, self.rope)
        for store in self.stores:
            store.append([k] * self.attender.stored_rotations, v)
        if first.index is not None:
            pair, paired = self.rope.pair, self.rope.paired()
            first.index.extend(pair(q), pair(k), v, [0], paired, self.shape.scale)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state = ForwardState()
        for store in self.stores:
            out = self.attender(q, k, v, self.rope, scale=self.shape.scale, store=store, state=state)
        return out


class Recorded(Longspan):
    """The same, single tokens replayed from a CUDA graph of all layers, as ``longspan.graphed`` does for a model."""

    def clear(self) -> None:
        super().clear()
        self.step: RecordedStep | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past = self.stores[0].length
        slots = [store.reserve_one() for store in self.stores if q.shape[2] == 1]
        if not slots or None in slots:  # a prefill, or a token that fills a chunk
            return super().__call__(q, k, v)
        kept_at = [slot.kept_at for slot in slots if slot is not None]
        if self.step is None or not self.step.holds(past):
            self._record((q, k, v), past, kept_at)
        assert self.step is not None
        for own, given in zip(self.given, (q, k, v), strict=True):
            own.copy_(given)
        self.step.move(past, kept_at)
        self.replay()
        for store in self.stores:
            store.commit_one()
        return self.out

    def _record(self, given: QKV, past: int, kept_at: list[int]) -> None:
        for store in self.stores:
            store.reserve(past + ROOM)
            if store.index is not None:
                store.index.reserve(store.capacity)
        capacity, device = min(store.capacity for store in self.stores), given[0].device
        step = self.step = RecordedStep(self.attender.tables, (0,), capacity, device, len(self.stores), past)
        self.given = tuple(x.clone() for x in given)
        step.move(past, kept_at)
        state = ForwardState()
        layers = [LayerCall(self.rope, self.shape.scale, (0,), None, None, n, state) for n in range(len(self.stores))]

        def run() -> Tensor:
            for layer, store in zip(layers, self.stores, strict=True):
                out = step(*self.given, layer, store)
            return out.transpose(1, 2)

        self.out, self.replay = record(run, device)


def random_calibration(size: int, channels: int) -> Calibration:
    """Maps of the right shape: what they hold decides what is chosen, not how long that takes."""
    g = torch.Generator().manual_seed(0)
    maps = {0: Projection(*(torch.randn(size, channels, generator=g) for _ in range(2)))}
    return Calibration(
        layers=maps,
        heads={0: Projection(*(torch.randn(1, 1, channels, generator=g) for _ in range(2)))},
        reduced=size,
        reduced_per_head=1,
        solver="closed_form",
        model_id="random",
        weights_sha256="0" * 64,
        dtype="float32",
        window=8192,
        tokens=1,
    )


def why_no_kvpress() -> str | None:
    """Why kvpress cannot take part; None if it can."""
    if version("kvpress") is None:
        return "kvpress is not installed; `make bench-peers` installs it without what it says of transformers"
    try:
        import kvpress  # noqa: F401
    except Exception as error:  # whatever its import does, the others are measured
        return f"kvpress {version('kvpress')} cannot be imported here: {type(error).__name__}: {error}"
    return None


# What chooses reads as many keys in prefill and decoding as the papers have it: 2,048 (8 x 256; window 2,048) for the
# prefills, so that most queries choose, and 4,096 (16 x 256; window 8,192) for decoding.
PREFILL_WINDOW, PREFILL_BUDGET, DECODE_BUDGET = 2048, 2048, 4096

PREFILL = ("flash", "stock", "kvpress", "full", "dca", "longheads", "longheads-mean", "longheads-bounds", "esa")
DECODE = ("stock", "kvpress", "full", "dca", "longheads", "longheads-mean", "longheads-bounds", "esa")
GRAPH = "-graph"  # ends the names of those whose tokens are replayed from a CUDA graph
GPU_DECODE = ("flash", *DECODE, *(f"{name}{GRAPH}" for name in DECODE if name not in ("stock", "kvpress")))


def make(phase: str, name: str, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> Contestant:
    """A contestant by name.

    Raises:
        ValueError: there is none of that name.
    """
    decoding = phase == "decode"
    if name == "flash":
        return (FlashDecode if decoding else Flash)(name, shape, dtype, device)
    if name == "stock":
        return Stock(name, shape, dtype, device)
    if name == "kvpress":
        return KVPress(name, shape, dtype, DECODE_BUDGET if decoding else PREFILL_BUDGET, device)
    made = Recorded if name.endswith(GRAPH) else Longspan
    plain: dict[str, Method] = {"full": Full(), "dca": DCA()}
    method_name = name.removesuffix(GRAPH)
    if method_name in plain:
        return made(name, shape, dtype, plain[method_name], device=device)
    window = shape.window if decoding else min(PREFILL_WINDOW, shape.window)
    if method_name.startswith("longheads"):
        count = (DECODE_BUDGET if decoding else PREFILL_BUDGET) // 256
        scores = {"longheads": "representation", "longheads-mean": "mean", "longheads-bounds": "bounds"}
        if method_name in scores:
            method = LongHeads(chunk_length=256, num_chunks=count, score=scores[method_name])  # type: ignore[arg-type]
            return made(name, shape, dtype, method, window, device)
    if method_name == "esa":
        large = decoding and window >= 8192  # the paper's sizes for Llama-3; else in the same proportions
        method = ESA(initial=128, local=4096, top_k=2048, query_chunk=512) if large else ESA()
        return made(name, shape, dtype, method, window, device, reduced=128 if decoding or device != "cpu" else None)
    raise ValueError(f"no contestant is called {name!r}; there are {', '.join(dict.fromkeys((*PREFILL, *DECODE)))}")
