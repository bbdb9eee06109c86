"""Weights to begin with: heads that look one, two and three tokens back, and heads that find what came before.

Copying needs two layers that agree: one that tells each position which tokens came before it, and one that looks
for positions whose predecessors are the tokens at hand (induction heads, Olsson et al., 2022). From random weights a
small model finds this by chance after about a million tokens. Structured weights to begin with save that (mimetic
initialization, Trockman & Kolter, 2023). They know nothing of any text: every direction is random.

- Embeddings share a direction that is the same for all tokens, which serves as the bias that a Llama does not have.
- Layer 0, first group of heads: queries and keys see only that direction, turned by RoPE's angles of one, two and three
  positions, so that a head attends that far back. Values are a random projection of the token, `P`; each head writes
  it to a subspace of its own, `M[1]`, `M[2]`, `M[3]`.
- Layers 1 and 2: keys read what came before, queries the token at hand, in the same random coordinates, which lie in
  RoPE's slow dimensions. The first group matches one token, the second two in a row. Values and outputs are transposes.
- All else is random, and what writes to the residual stream is small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llama import THETA, Llama

CONSTANT = 0.83  # length of the shared direction, and about that of a token's own part
SHARP = 5.0  # length of a query's and a key's part in each of the fast dimensions that tell distances apart
FAST = 4
SLOW = 8  # dimensions from this pair on turn slowly enough to compare tokens
MATCH = 4.0
COPY = 0.15
MATCHING = (1, 2)  # layers


@torch.no_grad()
def begin(model: Llama) -> None:
    """Set the weights of a fresh model. Draws from torch's generator."""
    shape = model.shape
    width, head, half = shape.hidden, shape.head, shape.head // 2
    group = shape.heads // shape.kv_heads
    basis = torch.linalg.qr(torch.randn(width, width))[0].T
    shared, token = basis[0], basis[1 : 1 + head]
    before = {o: basis[1 + o * head : 1 + (o + 1) * head] for o in range(1, group + 1)}
    left = basis[1 + (group + 1) * head :]
    own = torch.randn(shape.vocabulary, width) * 0.06
    model.embed_tokens.copy_(own - own @ shared[:, None] * shared + CONSTANT * shared)
    for layer in model.layers:
        layer.o_proj.normal_(std=0.005)
        layer.down_proj.normal_(std=0.005)
    # After the norm, the shared direction has this length.
    seen = math.sqrt(width) * CONSTANT / math.sqrt(CONSTANT**2 + 0.06**2 * width)
    first = model.layers[0]
    angles = THETA ** (-torch.arange(half) / half)
    unit = torch.zeros(head)
    unit[:FAST] = SHARP / seen
    first.k_proj[:head] = unit[:, None] * shared
    first.v_proj[:head] = token
    for o, place in before.items():
        rows = slice((o - 1) * head, o * head)
        turned = torch.cat([unit[:half] * torch.cos(o * angles), -unit[:half] * torch.sin(o * angles)])
        first.q_proj[rows] = turned[:, None] * shared
        first.o_proj[:, rows] += 0.2 * place.T
    for n in MATCHING:
        layer = model.layers[n]
        one, two = (_slow(head) for _ in range(2))
        layer.k_proj[:head] = MATCH * one @ before[1]
        pair = two.clone()
        pair[SLOW : SLOW + (half - SLOW) // 2] = 0  # these coordinates compare the token before that
        pair[half + SLOW : half + SLOW + (half - SLOW) // 2] = 0
        layer.k_proj[head : 2 * head] = MATCH * ((two - pair) @ before[1] + pair @ before[2])
        # Only what is left of the space is copied: it holds the token, and neither the shared direction nor what the
        # matching reads.
        layer.v_proj[:head], layer.v_proj[head : 2 * head] = left[:head], left[-head:]
        for h in range(shape.heads):
            rows, kv = slice(h * head, (h + 1) * head), h // group
            layer.q_proj[rows] = MATCH * (one @ token if kv == 0 else (two - pair) @ token + 0.4 * pair @ before[1])
            layer.o_proj[:, rows] += COPY * layer.v_proj[kv * head : (kv + 1) * head].T
    for layer in model.layers:
        layer.q_proj.add_(torch.randn_like(layer.q_proj) * 0.01)
        layer.k_proj.add_(torch.randn_like(layer.k_proj) * 0.01)


def _slow(head: int) -> Tensor:
    """Random coordinates of a projected token, in the dimensions that RoPE turns slowly: (head, head)."""
    mixed = torch.linalg.qr(torch.randn(head, head))[0]
    half = head // 2
    mixed[:SLOW] = 0
    mixed[half : half + SLOW] = 0
    return mixed
