"""Weights to begin with: heads that look one to six tokens back, and heads that find where the same tokens came before.

Copying needs two layers that agree: one that tells each position which tokens came before it, and one that looks for
positions whose predecessors are the tokens at hand (induction heads, Olsson et al., 2022). Looking up a value needs the
same over several tokens: after "the number of Ada is" stands what followed those words before. From random weights a
small model finds this by chance after millions of tokens. Structured weights to begin with save that (mimetic
initialization, Trockman & Kolter, 2023). They know nothing of any text: every direction is random.

- Embeddings share a direction that is the same for all tokens, which serves as the bias that a Llama does not have.
- Layer 0: queries and keys see only that direction, rotated by RoPE's angles of one to six positions, so that each head
  attends that far back. Values are a random code of the token; each head writes it to a place of its own.
- Layer 1: keys read the codes of the tokens before, queries those of the token at hand and before it, in the same
  coordinates, which lie in RoPE's slow dimensions. Heads of the first group compare one or two tokens, those of the
  second up to six. Values are the token itself, and outputs their transposes.
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
SLOW = 8  # dimensions from this pair on rotate slowly enough to compare tokens
CODE = 16  # length of a token's code
WRITE = 0.3  # what a look back adds to the residual stream
MATCH = 3.0
COPY = 0.5
WEIGHTS = ((1.0, 0.5, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0, 1.0, 0.7))  # of the tokens compared, by group


@torch.no_grad()
def begin(model: Llama) -> None:
    """Set the weights of a fresh model. Draws from torch's generator."""
    shape = model.shape
    width, head = shape.hidden, shape.head
    group = shape.heads // shape.kv_heads
    basis = torch.linalg.qr(torch.randn(width, width))[0].T
    shared, places = basis[0], [basis[1 + CODE * n : 1 + CODE * (n + 1)] for n in range(shape.heads + 1)]
    left = basis[1 + CODE * (shape.heads + 1) :]
    own = torch.randn(shape.vocabulary, width) * 0.06
    model.embed_tokens.copy_(own - own @ shared[:, None] * shared + CONSTANT * shared)
    for layer in model.layers:
        layer.o_proj.normal_(std=0.005)
        layer.down_proj.normal_(std=0.005)
    look_back(model, shared, places)
    match(model, places, left[:head], left[-head:], group)
    for layer in model.layers[:2]:
        layer.q_proj.add_(torch.randn_like(layer.q_proj) * 0.01)
        layer.k_proj.add_(torch.randn_like(layer.k_proj) * 0.01)


def look_back(model: Llama, shared: Tensor, places: list[Tensor]) -> None:
    """Head `h` of layer 0 attends `h + 1` tokens back and writes that token's code to `places[h + 1]`."""
    shape, layer = model.shape, model.layers[0]
    head, half = shape.head, shape.head // 2
    angles = THETA ** (-torch.arange(half) / half)
    # After the norm, the shared direction has this length.
    seen = math.sqrt(shape.hidden) * CONSTANT / math.sqrt(CONSTANT**2 + 0.06**2 * shape.hidden)
    part = torch.zeros(half)
    part[:FAST] = SHARP / seen
    for kv in range(shape.kv_heads):
        rows = slice(kv * head, (kv + 1) * head)
        layer.k_proj[rows] = torch.cat([part, torch.zeros(half)])[:, None] * shared
        layer.v_proj[rows][:CODE] = places[0]
    for h in range(shape.heads):
        rows, angle = slice(h * head, (h + 1) * head), (h + 1) * angles
        layer.q_proj[rows] = torch.cat([part * angle.cos(), -part * angle.sin()])[:, None] * shared
        layer.o_proj[:, h * head : h * head + CODE] += WRITE * places[h + 1].T


def match(model: Llama, places: list[Tensor], first: Tensor, second: Tensor, group: int) -> None:
    """Heads of layer 1 attend where the tokens before are those at hand, and copy what stands there."""
    shape, layer = model.shape, model.layers[1]
    head, half = shape.head, shape.head // 2
    # The codes that look back are longer than the token's own.
    scales = [WRITE / 0.06 / 4, *[1.0] * shape.heads]
    for kv, weights in enumerate(WEIGHTS):
        rows = slice(kv * head, (kv + 1) * head)
        keys, queries = torch.zeros(CODE, shape.hidden), torch.zeros(CODE, shape.hidden)
        for n, weight in enumerate(weights):
            mixed = torch.linalg.qr(torch.randn(CODE, CODE))[0]
            keys += weight**0.5 * mixed @ places[n + 1]
            queries += weight**0.5 * scales[n] * mixed @ places[n]
        layer.k_proj[rows] = MATCH * _slow(keys, half)
        layer.v_proj[rows] = (first, second)[kv]
        for h in range(kv * group, (kv + 1) * group):
            rows = slice(h * head, (h + 1) * head)
            layer.q_proj[rows] = MATCH * _slow(queries, half)
            layer.o_proj[:, rows] += COPY * (first, second)[kv].T


def _slow(coordinates: Tensor, half: int) -> Tensor:
    """Coordinates in the dimensions of a head that RoPE rotates slowly: (CODE, hidden) to (head, hidden)."""
    out = torch.zeros(2 * half, coordinates.shape[1])
    out[SLOW:half], out[half + SLOW :] = coordinates.split(half - SLOW)
    return out
