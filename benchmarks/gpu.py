"""The same on a GPU: Llama-3-8B's and Llama-2-7B's shapes in bf16, whole models at 4k to 128k, and a million tokens.

    python benchmarks/gpu.py                          # all of it; it needs CUDA and says so if there is none
    python benchmarks/gpu.py --what profile           # where the time of a prefill and of a token goes
    python benchmarks/gpu.py --what layers            # attention and cache of layers, 4k to 1M
    python benchmarks/gpu.py --what models            # LongHeads' Table 5 and DCA's Figure 3: reading, a token, GB
    python benchmarks/gpu.py --what million           # 1,048,576 tokens in the host's memory and on the GPU

Weights are random: time and memory do not depend on them. The accuracy of Table 5 needs a trained model; `longspan eval
passkey --model PATH --methods longheads --lengths 4k,16k,32k,128k` measures it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common import save
from contestants import GPU_DECODE, PREFILL, Shape, why_no_kvpress
from gpu_models import Run, config, layers_that_fit, rows
from profiler import gpu_rows
from suite import Case, right, run_cases, show, write

RESULTS = Path(__file__).parent / "results" / "gpu"
LLAMA_3 = Shape(layers=4)
LLAMA_2 = Shape(heads=32, kv_heads=32, layers=4, window=4096, base=10_000.0)
# Seconds a token and GB of LongHeads' Table 5 (one A100; 128k with the keys and values in the host's memory).
PAPER = {131072: (4.14, 42.3)}
MILLION = 1 << 20
READING = 25.0  # seconds after which no prefill chunk is begun
WHAT = ("profile", "layers", "models", "million")
LINEAR = ("longheads", "longheads-bounds", "esa")


def layer_cases() -> list[Case]:
    """Attention and cache of four layers, which share what a forward makes once; of a million tokens one layer's."""
    few = lambda names: tuple(n for n in names if n.removesuffix("-graph") in ("flash", "full", *LINEAR))  # noqa: E731
    one = Shape(layers=1)
    return [
        *(Case("prefill", "bf16", n, PREFILL, 5, LLAMA_3) for n in (4096, 16384)),
        Case("prefill", "bf16", 65536, PREFILL, 3, LLAMA_3),
        *(Case("decode", "bf16", n, GPU_DECODE, 21, LLAMA_3) for n in (16384, 131072)),
        Case("decode", "bf16", MILLION, few(GPU_DECODE), 21, one),
        Case("prefill", "bf16", 16384, ("flash", "full", "dca", *LINEAR), 5, LLAMA_2),
        Case("decode", "bf16", 131072, few(GPU_DECODE), 21, LLAMA_2),
        Case("prefill", "bf16", 262144, ("flash", *LINEAR), 1, one),
        Case("prefill", "bf16", MILLION, LINEAR, 1, one),
    ]


def model_runs() -> dict[str, list[Run]]:
    """The runs of each model, by the name of its shape, in order of value."""
    five = ("stock", "full", "dca", "longheads", "esa")
    three = [Run(name, 32768) for name in (*five, "yarn")]
    three += [Run(name, 131072, 8192) for name in ("longheads", "esa", "dca", "stock")]
    three += [Run(name, 4096) for name in five]
    two = [Run("longheads", 131072, 8192), Run("longheads", 131072, 8192, "host", seconds=READING)]
    two += [Run(name, n) for n in (4096, 16384, 32768) for name in ("stock", "dca", "longheads")]
    two += [Run("eager", n) for n in (4096, 8192)]
    return {"llama-3-8b": three, "llama-2-7b": two}


def models() -> Iterator[dict[str, Any]]:
    """Reading and decoding of whole models, with the figures of LongHeads' Table 5 beside its own."""
    for name, runs in model_runs().items():
        shape, inner = (LLAMA_3, 14336) if name == "llama-3-8b" else (LLAMA_2, 11008)
        for row in rows(config(shape, 32, 4096, inner, 32000), runs):
            table_5 = name == "llama-2-7b" and row["method"] == "longheads" and row["tier"] == "host"
            paper = PAPER.get(row["length"], ("", "")) if table_5 else ("", "")
            yield {"model": name, **row, "paper_seconds_per_token": paper[0], "paper_gb": paper[1]}


def million(gib: float, tokens: int = MILLION) -> Iterator[dict[str, Any]]:
    """A token after a million, of as many layers of Llama-3-8B's shape as fit, their keys and values in each tier."""
    for tier, room in (("host", gib), ("device", min(gib, 32.0))):
        layers = layers_that_fit(LLAMA_3, tokens, room)
        runs = [Run(name, tokens, tier=tier, filled=True) for name in ("longheads", "esa")]
        for row in rows(config(LLAMA_3, layers, 4096, 14336, 32000), runs):
            yield {"model": "llama-3-8b", **row}


def refusal() -> str | None:
    """Why nothing can be measured here; None if it can."""
    if torch.cuda.is_available():
        return None
    built = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
    return (
        f"torch {torch.__version__} {built}, and this benchmark is of a GPU alone; run it where "
        "torch.cuda.is_available(), or `make bench` for the CPU"
    )


def kept(
    console: Console, made: Callable[[], Iterator[dict[str, Any]]], path: Path, device: str
) -> list[dict[str, Any]]:
    """The rows, which are saved one by one, so that an interrupted run leaves what it measured."""
    found: list[dict[str, Any]] = []
    for row in made():
        found.append(row)
        console.print({name: value for name, value in row.items() if value != ""})
        save(path, found, 2, device=device)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=WHAT, default=[*WHAT])
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
        keep = lambda rows: write(args.out, rows, 2, name)  # noqa: E731
        rows, failed = run_cases(console, cases, 2, (), "cuda", keep)
        show(console, rows)
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "profile": lambda: gpu_rows(LLAMA_3),
        "models": models,
        "million": lambda: million(args.kv_gib, args.tokens),
    }
    for what, made in parts.items():
        if what in args.what:
            failed += all("failed" in row for row in kept(console, made, args.out / f"{what}.csv", name))
    console.print(f"{(time.monotonic() - begun) / 60:.1f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
