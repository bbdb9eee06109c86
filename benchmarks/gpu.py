"""The same on a GPU: Llama-2-7B's and Llama-3-8B's shapes in bf16, whole models at 4k to 128k, and a million tokens.

    python benchmarks/gpu.py                          # all of it; it needs CUDA and says so where there is none
    python benchmarks/gpu.py --what layers            # attention and cache of a layer, 4k to 1M, with the bars
    python benchmarks/gpu.py --what models            # LongHeads' Table 5: seconds a token and GB at 4k, 16k, 32k, 128k
    python benchmarks/gpu.py --what million           # 1,048,576 tokens, kept on the GPU and in the host's memory

Weights are random: time and memory do not depend on them. The accuracy of Table 5 needs a trained model; `longspan eval
passkey --model PATH --methods longheads --lengths 4k,16k,32k,128k` measures it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from common import blocks, clock, save
from contestants import DECODE, PREFILL, Shape, why_no_kvpress
from longspan.hf.argument import CACHE_ARGUMENT
from memory import Failed, alone
from suite import PRELOAD, Case, right, run_cases, show, write
from verdicts import GPU_BARS, judge

RESULTS = Path(__file__).parent / "results" / "gpu"
LLAMA_3 = Shape(layers=1)
LLAMA_2 = Shape(heads=32, kv_heads=32, layers=1, window=4096, base=10_000.0)
# Seconds a token and GB of the paper's Table 5 (one A100; 128k with the keys and values in the host's memory).
PAPER = {131072: (4.14, 42.3)}
WEIGHTS_2 = 13.5e9  # bytes of Llama-2-7B's in bf16
MILLION = 1 << 20
DEVICE_GIB = 32.0  # of a GPU's memory for the million tokens' keys and values, which grow by half
STEPS = 32  # tokens that are decoded after the prompt
READING = 90.0  # seconds after which no prefill chunk is begun; a million tokens are given twice that
# Method, tier of keys and values, whether steps are replayed from a CUDA graph.
TABLE_5 = (
    (None, "device", False),
    *((name, "device", graph) for name in ("full", "dca") for graph in (False, True)),
    ("longheads", "device", False),
    ("longheads", "host", False),
)


def layer_cases() -> list[Case]:
    """Attention and cache of one layer of both shapes, shortest first; of a million tokens what is linear in them."""
    cases = []
    for n in (4096, 16384, 65536, 131072, MILLION):
        for shape in (LLAMA_3, LLAMA_2) if n < MILLION else (LLAMA_3,):
            linear = ("flash", "longheads", "longheads-bounds", "esa")
            cases.append(Case("decode", "bf16", n, ("flash", *DECODE) if n < MILLION else linear, 21, shape))
            cases.append(
                Case("prefill", "bf16", n, PREFILL if n < MILLION else linear[1:], 5 if n < MILLION else 1, shape)
            )
    return cases


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


@torch.inference_mode()
def read_and_go_on(
    made: LlamaConfig,
    method: str | None,
    tokens: int,
    piece: int,
    steps: int,
    tier: str,
    device: str,
    graph: bool = False,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Read ``tokens`` random tokens in prefill chunks and go on for ``steps``; ``method`` None is the stock model.

    With ``graph`` the steps are replayed from a CUDA graph (``longspan.graphed``). After ``seconds`` of reading no
    prefill chunk is begun, and the steps follow what was ``read``.

    In a process of its own.
    """
    torch.manual_seed(0)
    now = clock(1 if device == "cpu" else 2, device)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    with torch.device(device):
        model = LlamaForCausalLM(made).to(dtype).eval()
    cache = None
    if method is not None:
        longspan.extend(model, method, kv_tier=tier)  # type: ignore[arg-type]
        cache = longspan.new_cache(model)
    ids = torch.randint(made.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    begun = now()
    for a, b in blocks(tokens, piece):
        out = model(ids[:, a:b], logits_to_keep=1, use_cache=True, **{CACHE_ARGUMENT: cache})
        cache, read = getattr(out, CACHE_ARGUMENT), b
        if now() - begun > seconds:
            break
    prefill, times = now() - begun, []
    token = out.logits[:, -1].argmax(-1, keepdim=True)
    with longspan.graphed(model) if graph else nullcontext():
        for _ in range(steps):
            begun = now()
            token = model(input_ids=token, **{CACHE_ARGUMENT: cache}).logits[:, -1].argmax(-1, keepdim=True)
            times.append(now() - begun)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device != "cpu" else float("nan")
    return {
        "layers": made.num_hidden_layers,
        "method": method or "stock",
        "graph": graph,
        "tier": tier,
        "length": tokens,
        "read": read,
        "prefill_seconds": f"{prefill:.2f}",
        "seconds_per_token": f"{statistics.median(times):.4f}",
        "device_gb": f"{peak:.2f}",
    }


def table_5(
    console: Console,
    lengths: tuple[int, ...] = (4096, 16384, 32768, 131072),
    keep: Callable[[list[dict[str, Any]]], object] = lambda rows: None,
    memory: float = math.inf,
) -> list[dict[str, Any]]:
    """Llama-2-7B's shape: stock, full and DCA with and without a CUDA graph, LongHeads with and without offload.

    ``keep`` is given the rows so far after each, so that an interrupted run leaves what it measured. Offloaded
    prefills, which take longest, come last. Where weights, keys and values fill the device's ``memory``, nothing
    is run to find that out.
    """
    made, rows = config(LLAMA_2, 32, 4096, 11008, 32000), []
    cases = [(length, *case) for length in lengths for case in TABLE_5]
    for length, method, tier, graph in sorted(cases, key=lambda case: case[2] != "device"):
        needed = WEIGHTS_2 + 32 * length * LLAMA_2.kv_heads * LLAMA_2.width * 4
        if tier == "device" and needed > 0.9 * memory:  # the rest is for growth and for what a forward computes with
            known = {"layers": 32, "method": method or "stock", "graph": graph, "tier": tier, "length": length}
            row = {**known, "failed": f"not run: {needed / 2**30:.1f} GiB of {memory / 2**30:.1f}"}
        else:
            row = _measured(made, method, length, 4096, tier, graph, READING)
        paper = PAPER.get(length, ("", "")) if method == "longheads" else ("", "")
        rows.append({**row, "paper_seconds_per_token": paper[0], "paper_gb": paper[1]})
        console.print(rows[-1])
        keep(rows)
    return rows


def million(
    console: Console,
    gib: float,
    tokens: int = MILLION,
    keep: Callable[[list[dict[str, Any]]], object] = lambda rows: None,
) -> list[dict[str, Any]]:
    """One sequence through LongHeads, as many layers of Llama-3-8B's shape as fit, their keys and values in each tier.

    ``keep``: see ``table_5``.
    """
    rows = []
    for tier, room in (("device", min(gib, DEVICE_GIB)), ("host", gib)):
        layers = layers_that_fit(LLAMA_3, tokens, room)
        made = config(LLAMA_3, layers, 4096, 14336, 32000)
        rows.append(_measured(made, "longheads", tokens, 8192, tier, False, 2 * READING))
        console.print(f"{tokens:,} tokens, {layers} layers of Llama-3-8B's shape, up to {room:g} GiB: {rows[-1]}")
        keep(rows)
    return rows


def _measured(
    made: LlamaConfig, method: str | None, length: int, piece: int, tier: str, graph: bool, seconds: float
) -> dict[str, Any]:
    """The row of ``read_and_go_on``, or of what it failed by."""
    try:
        given = made, method, length, piece, STEPS, tier, "cuda", graph, seconds
        return dict(alone(read_and_go_on, *given, preload=PRELOAD))
    except Failed as error:
        known = {"layers": made.num_hidden_layers, "method": method or "stock", "graph": graph, "tier": tier}
        return {**known, "length": length, "failed": error.reason[:200]}


def refusal() -> str | None:
    """Why nothing can be measured here; None where it can."""
    if torch.cuda.is_available():
        return None
    built = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
    return (
        f"torch {torch.__version__} {built}, and this benchmark is of a GPU alone; run it where "
        "torch.cuda.is_available(), or `make bench` for the CPU"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--what", nargs="+", choices=("layers", "models", "million"), default=["layers", "models", "million"]
    )
    parser.add_argument("--kv-gib", type=float, default=80.0, help="GiB of host memory for the million tokens' cache")
    parser.add_argument("--tokens", type=int, default=MILLION, help="instead of a million")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    args = parser.parse_args(argv)
    if reason := refusal():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    console, begun = Console(width=150), time.monotonic()
    name, failed = torch.cuda.get_device_name(), 0
    if "layers" in args.what:
        cases = right(console, layer_cases(), why_no_kvpress(), "cuda")
        keep = lambda rows: write(args.out, rows, GPU_BARS, 2, name)  # noqa: E731
        rows, failed = run_cases(console, cases, 2, (), "cuda", keep)
        show(console, rows, judge(GPU_BARS, rows))
    if "models" in args.what:
        room = torch.cuda.get_device_properties(0).total_memory
        keep = lambda rows: save(args.out / "table5.csv", rows, 2, device=name)  # noqa: E731
        failed += all("failed" in row for row in table_5(console, keep=keep, memory=room))
    if "million" in args.what:
        keep = lambda rows: save(args.out / "million.csv", rows, 2, device=name)  # noqa: E731
        failed += all("failed" in row for row in million(console, args.kv_gib, args.tokens, keep))
    console.print(f"{(time.monotonic() - begun) / 60:.1f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
