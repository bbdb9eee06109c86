"""The whole model through ``generate``: seconds of a step, and the share of longspan's kernels in it.

The bundled model at 8k to 64k tokens and a random Llama of 1.1 billion parameters at 16k, fp32, under three methods.
The cache is filled with random keys and values, then ``generate`` reads the last prefill chunks of the prompt, one
after the other, and goes on token by token. torch.profiler then says which operators the time goes to, in a run of its
own, since it slows down small ones.

    python benchmarks/whole.py
    python benchmarks/whole.py --models bundled --lengths 8192 --no-save
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import longspan
from common import blocks, clock, save, version
from contestants import BLOCK, why_no_kvpress
from longspan.bundled import load_bundled
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.attach import attachment_of
from longspan.kernels import cpu
from longspan.methods import METHODS
from memory import alone
from profiler import Kernels

RESULTS = Path(__file__).parent / "results" / "speed"
CASES = {"bundled": (8192, 16384, 32768, 65536), "1b": (16384,)}
STOCK = "stock"  # the model as it was, for its seconds
METHODS_RUN = (STOCK, "full", "dca", "longheads", "esa")
PRELOAD = ("profiler", "contestants")
PIECES, STEPS = 5, 24


def load(name: str) -> PreTrainedModel:
    """The bundled model, or a random one of TinyLlama's shape: 1.1 billion parameters, 4.4 GB."""
    if name == "bundled":
        return load_bundled()[0]
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        eos_token_id=None,
    )
    with torch.device("meta"):  # its own initialisation takes longer than what is measured
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    g = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.uniform_(-0.02, 0.02, generator=g)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its frequencies are no parameters
    return model.eval()


def extend(model: PreTrainedModel, method: str) -> None:
    if method != STOCK:
        longspan.extend(model, method)


def filled(model: PreTrainedModel, length: int) -> Any:
    """A cache of ``length`` random tokens, indices included; transformers' own for a model that is not extended."""
    attachment, config = attachment_of(model), model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if attachment is None:
        stock = DynamicCache(config=config)
        k = torch.randn(1, kv_heads, length, config.head_dim, generator=torch.Generator().manual_seed(0))
        for n in range(config.num_hidden_layers):
            stock.update(k, k, n)
        return stock
    cache, attender = longspan.new_cache(model), attachment.attender
    for layer in attachment.layers:
        store, rope = cache.layers[layer.index].store, layer.rope
        assert rope is not None
        g = torch.Generator().manual_seed(layer.index)
        store.index = attender.new_index(layer.index, rope)
        for a, b in blocks(length, BLOCK):
            q, k, v = (torch.randn(1, h, b - a, rope.head_dim, generator=g) for h in (heads, kv_heads, kv_heads))
            store.append([k] * attender.stored_rotations, v)
            if store.index is not None:
                store.index.extend(rope.pair(q), rope.pair(k), v, [0], rope.paired(), rope.head_dim**-0.5)
    return cache


def go_on(model: PreTrainedModel, length: int, piece: int, steps: int) -> None:
    """``generate`` over a filled cache: the last prefill chunks of ``length`` tokens, then ``steps`` tokens."""
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (1, length), generator=g)
    cache = filled(model, length - PIECES * piece)
    for a in range(length - PIECES * piece, length, piece):
        # As a user reads a long prompt in chunks; the last one's token is followed by ``steps`` more.
        last = a + piece == length
        new = steps + 1 if last else 1
        model.generate(
            ids[:, : a + piece],
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=2,
            **{CACHE_ARGUMENT: cache},  # also of the stock model
        )


@dataclass(frozen=True)
class Step:
    """One forward of ``tokens`` new tokens: its seconds, and those in kernels in C."""

    tokens: int
    seconds: float
    kernels: float


@torch.inference_mode()
def measure(name: str, lengths: Sequence[int], method: str, piece: int, threads: int) -> list[dict[str, Any]]:
    """Rows of one model under one method; in a process of its own."""
    torch.set_num_threads(threads)
    now = clock(threads)
    rows, kernels, steps = [], Kernels(now), list[Step]()
    model = load(name)
    extend(model, method)
    begun = [0.0]

    def before(module: object, given: object) -> None:
        kernels.spent = Counter()
        begun[0] = now()

    def after(module: object, given: object, kwargs: dict[str, Any], out: object) -> None:
        steps.append(Step(kwargs["input_ids"].shape[1], now() - begun[0], sum(kernels.spent.values())))

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after, with_kwargs=True)
    with cpu.settings(around=kernels):
        for length in lengths:
            steps.clear()
            go_on(model, length, piece, STEPS)
            for phase in ("piece", "decode"):
                own = [step for step in steps if (step.tokens > 1) == (phase == "piece")]
                rows.append(summary(name, method, length, phase, own))
    return rows


def summary(name: str, method: str, length: int, phase: str, steps: list[Step]) -> dict[str, Any]:
    """A row: the median seconds of a step, and the share of the kernels in C.

    Raises:
        ValueError: there was no such step.
    """
    if not steps:
        raise ValueError(f"{name} {method} {length}: no forward of kind {phase!r} was seen")
    steps = steps[1:] if len(steps) > 2 else steps  # the first one grows buffers and tables, once for many
    return {
        "model": name,
        "method": method,
        "length": length,
        "step": phase,
        "seconds": f"{statistics.median(step.seconds for step in steps):.5f}",
        "steps": len(steps),
        "kernels": f"{statistics.median(step.kernels / step.seconds for step in steps):.4f}",
    }


def why_no_press() -> str | None:
    """Why kvpress cannot press a whole model here; None if it can."""
    # Its import alone changes transformers' attention functions, so it has a process of its own.
    return alone(_try_press, preload=PRELOAD)


def _try_press() -> str | None:
    if reason := why_no_kvpress():
        return reason
    from kvpress import SnapKVPress

    model = load("bundled")
    try:
        with torch.no_grad(), SnapKVPress(compression_ratio=0.5)(model):
            model.generate(torch.arange(3, 203)[None], max_new_tokens=2, do_sample=False)
    except Exception as error:  # whatever it is, it is what the column says
        accepted = [name for name in importlib.metadata.requires("kvpress") or () if name.startswith("transformers")]
        here = f"kvpress {version('kvpress')}, which accepts {', '.join(accepted)}, under {version('transformers')}"
        return f"{here}: {type(error).__name__}: {error}"
    return None


@torch.inference_mode()
def operators(name: str, length: int, method: str, threads: int, top: int = 12) -> list[dict[str, Any]]:
    """The operators of the decoding steps that take most of the time themselves; in a process of its own."""
    torch.set_num_threads(threads)
    model = load(name)
    extend(model, method)
    cache = filled(model, length - 1)
    token = torch.tensor([[5]])
    for _ in range(3):
        model(token, **{CACHE_ARGUMENT: cache})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(8):
            model(token, **{CACHE_ARGUMENT: cache})
    events = [event for event in profiler.key_averages() if event.self_cpu_time_total > 0]
    total = sum(event.self_cpu_time_total for event in events)
    events.sort(key=lambda event: -event.self_cpu_time_total)
    return [
        {
            "model": name,
            "method": method,
            "length": length,
            "operator": event.key,
            "calls": f"{event.count / 8:.0f}",
            "ms": f"{event.self_cpu_time_total / 8000:.3f}",
            "share": f"{event.self_cpu_time_total / total:.3f}",
        }
        for event in events[:top]
    ]


def show(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=(STOCK, *METHODS), default=list(METHODS_RUN))
    parser.add_argument("--lengths", type=int, nargs="+", help="of all models, instead of each one's own")
    parser.add_argument("--piece", type=int, default=128, help="tokens of a prefill chunk")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    args = parser.parse_args(argv)
    if args.piece < 2 or any(length <= PIECES * args.piece for length in args.lengths or ()):
        parser.error(f"--piece is two tokens or more, and every length longer than {PIECES} of them, not {args.piece}")
    console = Console(width=150)
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for name in args.models:
        lengths = tuple(args.lengths or CASES[name])
        for method in args.methods:
            with console.status(f"{name}, {method} …"):
                rows += alone(measure, name, lengths, method, args.piece, args.threads, preload=PRELOAD)
                found += alone(operators, name, lengths[-1], method, args.threads, preload=PRELOAD)
            if not args.no_save:  # after each, so that an interrupted run leaves what it measured
                save(args.out / "whole.csv", rows, args.threads)
                save(args.out / "operators.csv", found, args.threads)
    show(console, rows, "seconds of a forward, and the share of longspan's kernels")
    show(console, found, "operators of a decoding step, by their own time (under torch.profiler)")
    if reason := why_no_press():
        console.print(f"[yellow]kvpress through generate, not measured:[/] {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
