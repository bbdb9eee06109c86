"""Whole models with random weights on a GPU: what reading takes, and a token after it, called and from a CUDA graph."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from common import blocks, clock
from contestants import Shape, random_block
from longspan.errors import LongspanError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.attach import attached_to
from longspan.hf.cache import LongspanCache

BLOCK = 8192  # tokens that a cache is filled with at a time
STEPS = 16  # tokens that are decoded each way
WARM = 600  # tokens beyond the window of the run that is not timed


@dataclass(frozen=True)
class Run:
    """One row.

    Attributes:
        method: of longspan; ``stock`` is transformers with sdpa, ``eager`` its attention in torch's own operations.
        length: tokens before those that are decoded.
        piece: tokens of a prefill chunk.
        tier: where keys and values are kept.
        filled: the cache is filled with random keys and values in place of a prefill.
        seconds: after which no prefill chunk is begun.
    """

    method: str
    length: int
    piece: int = 4096
    tier: str = "device"
    filled: bool = False
    seconds: float = math.inf


def config(shape: Shape, layers: int, hidden: int, inner: int, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.width,
        max_position_embeddings=shape.window,
        rope_parameters={"rope_type": "default", "rope_theta": shape.base},
        eos_token_id=None,
    )


def layers_that_fit(shape: Shape, tokens: int, gib: float) -> int:
    """How many layers' keys and values of ``tokens`` tokens, in bf16, fit into ``gib`` GiB, 32 at most.

    Raises:
        ValueError: not even one.
    """
    each = 2 * shape.kv_heads * shape.width * 2 * tokens
    layers = min(32, int(gib * 2**30) // each)
    if layers < 1:
        raise ValueError(
            f"one layer's keys and values of {tokens:,} tokens are {each / 2**30:.2f} GiB, and {gib:g} are given"
        )
    return layers


def rows(made: LlamaConfig, runs: list[Run], device: str = "cuda", steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """The rows of one model, which is made once; a run that fails has its reason in its row, and the others go on.

    Before the first of a method a short one goes untimed: kernels are compiled then.
    """
    torch.manual_seed(0)
    warm: set[str] = set()
    with torch.device(device):
        model = LlamaForCausalLM(made).to(torch.bfloat16 if device != "cpu" else torch.float32).eval()
    for run in runs:
        row = {
            "heads": made.num_attention_heads,
            "kv_heads": made.num_key_value_heads,
            "layers": len(model.model.layers),
        }
        row |= {"method": run.method, "tier": run.tier, "length": run.length, "filled": int(run.filled)}
        try:
            if run.method not in warm:
                beyond = made.max_position_embeddings + WARM
                measured(model, replace(run, length=min(run.length, beyond), tier="device", filled=False), device, 4)
                warm.add(run.method)
            row |= measured(model, run, device, steps)
        except (torch.OutOfMemoryError, LongspanError) as error:
            row["failed"] = " ".join(str(error).split())[:200]
        yield row
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


@torch.inference_mode()
def measured(model: LlamaForCausalLM, run: Run, device: str, steps: int) -> dict[str, Any]:
    """How many tokens were ``read`` and the seconds of that, the median seconds of a token, and the peak in GB."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    if run.method in ("stock", "eager"):
        model.set_attn_implementation("sdpa" if run.method == "stock" else "eager")
        return _measured(model, run, None, nullcontext, device, steps)
    model.set_attn_implementation("sdpa")
    with longspan.extended(model, run.method, kv_tier=run.tier):  # type: ignore[arg-type]
        graphed = lambda: longspan.graphed(model, room=2 * steps)  # noqa: E731
        return _measured(model, run, longspan.new_cache(model), graphed, device, steps)


def _measured(
    model: LlamaForCausalLM,
    run: Run,
    cache: LongspanCache | None,
    graphed: Callable[[], AbstractContextManager[None]],
    device: str,
    steps: int,
) -> dict[str, Any]:
    now = clock(1 if device == "cpu" else 2, device)
    ids = torch.randint(model.config.vocab_size, (1, run.length), generator=torch.Generator().manual_seed(1)).to(device)
    read, held, begun = 0, cache, now()
    if run.filled:
        assert cache is not None
        fill(model, cache, run.length - 1, device)
        ids, read = ids[:, -1:], run.length - 1
    for a, b in blocks(ids.shape[1], run.piece):
        out = model(ids[:, a:b], logits_to_keep=1, use_cache=True, **{CACHE_ARGUMENT: held})
        held, read = getattr(out, CACHE_ARGUMENT), read + b - a
        if now() - begun > run.seconds:
            break
    found = {"read": read, "prefill_seconds": "" if run.filled else f"{now() - begun:.3f}"}
    token = out.logits[:, -1].argmax(-1, keepdim=True)
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {"seconds_per_token": nullcontext}
    if graphed is not nullcontext:
        ways["seconds_per_token_graph"] = graphed
    for name, way in ways.items():
        times = []
        try:
            with way():
                for _ in range(steps):
                    begun = now()
                    token = (
                        model(input_ids=token, use_cache=True, **{CACHE_ARGUMENT: held}).logits[:, -1].argmax(-1, True)
                    )
                    times.append(now() - begun)
        except LongspanError as error:
            found["no_graph"] = " ".join(str(error).split())[:120]
            continue
        found[name] = f"{statistics.median(times):.5f}"
    found["device_gb"] = f"{torch.cuda.max_memory_allocated() / 1e9:.2f}" if device != "cpu" else ""
    return found


def fill(model: LlamaForCausalLM, cache: LongspanCache, tokens: int, device: str) -> None:
    """Random keys and values of ``tokens`` tokens in every layer, and what the method keeps of them besides."""
    attachment = attached_to(model)
    attender, layers = attachment.attender, [layer for layer in attachment.layers if layer.rope is not None]
    first = layers[0]
    shape = Shape(heads=first.heads, kv_heads=first.kv_heads, width=first.key_dim)
    made = random_block(replace(shape, layers=1), model.dtype, device)
    for n, (a, b) in enumerate(blocks(tokens, BLOCK)):
        q, k, v = (x[:, :, : b - a].roll(n, dims=-1) for x in made)
        for layer, store in zip(layers, cache.stores, strict=True):
            rope = layer.rope
            assert rope is not None
            store.append([k] * attender.stored_rotations, v)
            if attender.chooser is not None:
                selector = attender.chooser.selector_in(store, layer.index, rope)
                selector.extend(rope.pair(q), rope.pair(k), v, [0], rope.paired(), shape.scale)
