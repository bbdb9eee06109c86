"""Where the time of one layer's prefill, or of a layer's share of a token, goes: kernels in C, and torch's operations.

python benchmarks/where.py longheads --tokens 16384 --width 64
python benchmarks/where.py longheads --decode --tokens 65536
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from common import clock
from contestants import PREFILL, Shape, make
from longspan.kernels import cpu


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method", choices=[name for name in PREFILL if name not in ("flash", "stock", "kvpress")])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--decode", action="store_true", help="one token after so many, Llama-3-8B's layers in bf16")
    parser.add_argument("--width", type=int, default=64, help="channels of a head, in prefill")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8, help="torch's operations that are shown")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    now, spent = clock(args.threads, "cpu"), Counter[str]()
    if args.decode:
        times, shape, dtype, phase = 20, Shape(layers=4), torch.bfloat16, "decode"
    else:
        times, shape, dtype, phase = 1, Shape(heads=8, kv_heads=2, layers=1, width=args.width), torch.float32, "prefill"
    one = make(phase, args.method, shape, dtype, "cpu")
    given = shape.qkv(1 if args.decode else args.tokens, dtype)

    def begin() -> None:
        if not args.decode:
            one.clear()

    def around(name: str, threads: int, run: Callable[[], None]) -> None:
        begun = now()
        run()
        spent[name] += now() - begun

    with torch.inference_mode(), cpu.settings(around=around):
        if args.decode:
            one.fill(args.tokens)
        for _ in range(2 if args.decode else 1):
            one(*given)  # what a first call sets up is no part of it
            begin()
        spent.clear()
        begun = now()
        for _ in range(times):
            one(*given)
        each = times * shape.layers
        whole = (now() - begun) / each
        kernels = {name: seconds / each for name, seconds in spent.items()}
        begin()
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(times):
                one(*given)
    table = Table("part", "ms", "share", title=f"{args.method}, {args.tokens:,} tokens: {1e3 * whole:.3g} ms")
    for name, seconds in sorted(kernels.items(), key=lambda pair: -pair[1]):
        table.add_row(name, f"{1e3 * seconds:.3g}", f"{seconds / whole:.0%}")
    table.add_section()
    operations = sorted(profiled.key_averages(), key=lambda row: -row.self_cpu_time_total)
    for row in operations[: args.rows]:
        seconds = row.self_cpu_time_total / 1e6 / each
        table.add_row(row.key, f"{1e3 * seconds:.3g}", f"{seconds / whole:.0%}")
    table.add_section()
    calls = sum(row.count for row in operations) / each
    table.add_row(f"outside of C, {calls:.0f} operations", "", f"{1 - sum(kernels.values()) / whole:.0%}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
