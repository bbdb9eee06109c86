"""The model as training computes it: a Llama whose blocks are one function each, so that they can be compiled.

`export` gives the same weights to transformers' LlamaForCausalLM; a test holds their logits together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

EPSILON = 1e-6
THETA = 10000.0
QUERIES = 128  # in a block of attention


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. `window` is the number of positions that training may use."""

    vocabulary: int
    hidden: int = 192
    inner: int = 384
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head: int = 32
    window: int = 512


class Block(nn.Module):
    """The weights of one layer, named as in transformers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        out, kv = shape.heads * shape.head, shape.kv_heads * shape.head
        wide = 1 / math.sqrt(shape.hidden)
        narrow = wide / 2

        def matrix(rows: int, columns: int, spread: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * spread)

        self.input_layernorm = nn.Parameter(torch.ones(shape.hidden))
        self.q_proj = matrix(out, shape.hidden, wide)
        self.k_proj = matrix(kv, shape.hidden, wide)
        self.v_proj = matrix(kv, shape.hidden, wide)
        self.o_proj = matrix(shape.hidden, out, narrow)
        self.post_attention_layernorm = nn.Parameter(torch.ones(shape.hidden))
        self.gate_proj = matrix(shape.inner, shape.hidden, wide)
        self.up_proj = matrix(shape.inner, shape.hidden, wide)
        self.down_proj = matrix(shape.hidden, shape.inner, narrow)


def block(x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor, head: int, weights: list[Tensor]) -> Tensor:
    """One layer.

    `x` has shape (batch, tokens, hidden), `cos` and `sin` (tokens, head / 2); `scale`, of no dimension, multiplies the
    attention scores; `weights` as in `Block`.
    """
    norm1, q_proj, k_proj, v_proj, o_proj, norm2, gate_proj, up_proj, down_proj = weights
    batch, tokens, hidden = x.shape
    heads, kv_heads = q_proj.shape[0] // head, k_proj.shape[0] // head
    y = F.rms_norm(x, (hidden,), norm1, EPSILON)
    qkv = F.linear(y, torch.cat([q_proj, k_proj, v_proj])).view(batch, tokens, -1, head).transpose(1, 2)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    q, k = rotated(q * scale, cos, sin), rotated(k, cos, sin)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    y = causal_attention(q, k, v)
    x = x + F.linear(y.transpose(1, 2).reshape(batch, tokens, -1), o_proj)
    gate, up = F.linear(F.rms_norm(x, (hidden,), norm2, EPSILON), torch.cat([gate_proj, up_proj])).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down_proj)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention in blocks of queries, each over the keys up to its last.

    All have shape (batch, heads, tokens, head).
    In bfloat16 and compiled it takes less than half the time of torch's flash attention for CPUs, forward and backward.
    """
    q, outs = q * q.shape[-1] ** -0.5, []
    for start in range(0, q.shape[2], QUERIES):
        mine = q[:, :, start : start + QUERIES]
        end = start + mine.shape[2]
        scores = (mine @ k[:, :, :end].transpose(-1, -2)).float()
        later = torch.ones(mine.shape[2], end, dtype=torch.bool).triu(start + 1)
        outs.append(scores.masked_fill(later, -math.inf).softmax(-1).to(v.dtype) @ v[:, :, :end])
    return torch.cat(outs, 2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on the halves of a head, as transformers has it. `x` has shape (batch, heads, tokens, head)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Llama(nn.Module):
    """Llama with tied embeddings, float32."""

    def __init__(self, shape: Shape, *, compiled: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.06)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        half = shape.head // 2
        angles = torch.arange(shape.window)[:, None] * THETA ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.compiled = torch.compile(block, dynamic=False) if compiled else block

    def forward(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        """The last hidden states, normalized: (batch, tokens) to (batch, tokens, hidden).

        `scale` multiplies all attention scores.
        """
        x = F.embedding(ids, self.embed_tokens)
        cos, sin, scales = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]], torch.tensor(scale)
        # A tenth is won at 64 tokens, a third at 512: short rows are not worth the minute that compiling takes.
        layer_of = self.compiled if ids.shape[1] >= 128 else block
        for layer in self.layers:
            x = layer_of(x, cos, sin, scales, self.shape.head, list(layer.parameters()))
        return F.rms_norm(x, (self.shape.hidden,), self.norm, EPSILON)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states: (..., hidden) to (..., vocabulary)."""
        return F.linear(hidden, self.embed_tokens)


def export(model: Llama) -> LlamaForCausalLM:
    """The same model as transformers has it, with a copy of the weights."""
    shape = model.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        max_position_embeddings=shape.window,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    out = LlamaForCausalLM(config)
    weights = {name: value.detach().clone() for name, value in named(model)}
    out.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    return out.eval()


def restore(model: Llama, exported: LlamaForCausalLM) -> None:
    """Give `model` the weights that `export` gave away."""
    weights = exported.state_dict()
    with torch.no_grad():
        for name, value in named(model):
            value.copy_(weights[name])


def named(model: Llama) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights by their names in transformers, the tied output excluded."""
    yield "model.embed_tokens.weight", model.embed_tokens
    yield "model.norm.weight", model.norm
    for n, layer in enumerate(model.layers):
        for name, value in layer.named_parameters():
            part = "" if "norm" in name else "self_attn." if name[0] in "qkvo" else "mlp."
            yield f"model.layers.{n}.{part}{name}.weight", value
