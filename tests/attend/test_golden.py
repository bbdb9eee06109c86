"""DCA equals the outputs of its authors' released attention on a small random Llama.

Their length scale is off in ``chunkllama.safetensors``, and on in ``chunkllama_length_scale.safetensors``: the logits
of the last of every 25 of the same tokens, in one prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from longspan.attend import Attender
from longspan.memory import KVStore
from longspan.methods import DCA, METHODS
from longspan.rope import Rope, Table
from support.cases import inv_freq

WINDOW, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, EPS = 64, 64, 2, 4, 2, 16, 1e-6
BOUND = 2e-5  # the golden file's own, in fp32


FOLDER = Path(__file__).parents[1] / "golden"


def load_golden() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's weights by their transformers names, and the recorded tensors."""
    tensors = load_file(FOLDER / "chunkllama.safetensors")
    weights = {name[2:]: x for name, x in tensors.items() if name.startswith("w.")}
    return weights, {name: x for name, x in tensors.items() if not name.startswith("w.")}


def authors_dca(**options):
    """The released code's numbers in our terms: chunk 5L/8, clamp at 3L/4, a local window up to the clamp."""
    return METHODS["dca"](chunk_size=40, local_window=9, window=49, **options).resolve(WINDOW)


class MiniLlama:
    """A Llama's forward written out, with ``Attender`` as its attention."""

    def __init__(self, weights: dict[str, Tensor], **options: Any) -> None:
        self.weights = weights
        self.attender = Attender(authors_dca(**options), WINDOW)
        self.rope = Rope(Table(inv_freq(HEAD)), HEAD)
        self.stores = [KVStore() for _ in range(LAYERS)]

    def __call__(self, ids: Tensor) -> Tensor:
        w = self.weights
        x = w["model.embed_tokens.weight"][ids]
        for n, store in enumerate(self.stores):
            prefix = f"model.layers.{n}."
            layer = {name.removeprefix(prefix): x for name, x in w.items() if name.startswith(prefix)}
            h = F.rms_norm(x, (HIDDEN,), layer["input_layernorm.weight"], EPS)
            flat = (F.linear(h, layer[f"self_attn.{p}_proj.weight"]) for p in "qkv")
            q, k, v = (y.unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in flat)
            out = self.attender(q, k, v, self.rope, scale=HEAD**-0.5, store=store)
            x = x + F.linear(out.transpose(1, 2).flatten(2), layer["self_attn.o_proj.weight"])
            h = F.rms_norm(x, (HIDDEN,), layer["post_attention_layernorm.weight"], EPS)
            gate, up = (F.linear(h, layer[f"mlp.{p}_proj.weight"]) for p in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, layer["mlp.down_proj.weight"])
        x = F.rms_norm(x, (HIDDEN,), w["model.norm.weight"], EPS)
        return F.linear(x, w["lm_head.weight"])

    def pieces(self, ids: Tensor, cuts: Sequence[int]) -> Tensor:
        edges = [0, *cuts]
        return torch.cat([self(ids[:, a:b]) for a, b in pairwise(edges)], dim=1)


@pytest.fixture(scope="module")
def golden():
    return load_golden()


@pytest.mark.parametrize("cuts", [(300,), (1, 39, 41, 90, 200, 300), range(1, 301)], ids=["one", "pieces", "each"])
def test_prefill(golden, cuts):
    weights, tensors = golden
    logits = MiniLlama(weights).pieces(tensors["input_ids"], cuts)
    assert (logits - tensors["logits"]).abs().max() < BOUND


def test_decode(golden):
    weights, tensors = golden
    logits = MiniLlama(weights).pieces(tensors["input_ids"], (249, *range(250, 301)))
    assert (logits[:, 249:] - tensors["decode_logits"]).abs().max() < BOUND


def test_the_length_scale_of_the_released_code(golden):
    weights, tensors = golden
    expected = load_file(FOLDER / "chunkllama_length_scale.safetensors")["logits"]
    for scale, same in ((DCA.CHUNKLLAMA, True), (DCA.QWEN_1M, False), (0.0, False)):
        off = (MiniLlama(weights, length_scale=scale)(tensors["input_ids"])[:, 24::25] - expected).abs().max()
        assert off < BOUND if same else off > 100 * BOUND


def test_the_golden_outputs_tell_positions_apart(golden):
    """The bound is far below what the paper's own defaults, another chunk size, would change."""
    weights, tensors = golden
    model = MiniLlama(weights)
    model.attender = Attender(METHODS["dca"]().resolve(WINDOW), WINDOW)
    assert (model(tensors["input_ids"]) - tensors["logits"]).abs().max() > 100 * BOUND
