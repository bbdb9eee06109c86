"""Where the time of a layer's prefill, or of its share of a token, goes: on a CPU or a GPU, by kernel and operation.

python benchmarks/profiler.py longheads --tokens 16384 --width 64
python benchmarks/profiler.py longheads --decode --tokens 65536
python benchmarks/gpu.py --what profile                   # on a GPU, every contestant
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from common import clock
from contestants import PREFILL, Shape, make
from longspan.kernels import cpu

NAMED = 3  # kernels of a GPU in a row, those that take longest
METHODS = ("flash", "full", "dca", "longheads", "longheads-bounds", "esa")
GRAPHS = ("full-graph", "dca-graph", "longheads-graph", "esa-graph")


@dataclass(frozen=True)
class Profiled:
    """A prefill of ``length`` tokens, or the token after them; ``runs``: whose median is the wall's time."""

    phase: str
    method: str
    length: int
    layers: int
    runs: int


def on_a_gpu() -> list[Profiled]:
    """One layer's prefills, and a token of four layers."""
    return [
        *(Profiled("prefill", name, 16384, 1, 3) for name in METHODS),
        *(Profiled("decode", name, 131072, 4, 10) for name in (*METHODS, *GRAPHS)),
        *(Profiled("prefill", name, 65536, 1, 1) for name in METHODS),
    ]


@torch.inference_mode()
def gpu_rows(shape: Shape, device: str = "cuda") -> Iterator[dict[str, Any]]:
    """A row for each of ``on_a_gpu``; ``gpu_ms`` is the sum of its kernels and copies, ``launches`` their number."""
    for part in on_a_gpu():
        one = make(part.phase, part.method, replace(shape, layers=part.layers), torch.bfloat16, device)
        given = one.shape.qkv(part.length if part.phase == "prefill" else 1, torch.bfloat16, device)
        if part.phase == "decode":
            one.fill(part.length)

        def run(one=one, given=given, part=part) -> None:
            if part.phase == "prefill":
                one.clear()
            one(*given)

        row = {"phase": part.phase, "method": part.method, "length": part.length, "layers": part.layers}
        yield {**row, **_on_the_gpu(run, part.runs)}
        del one, given, run
        gc.collect()
        torch.cuda.empty_cache()


def _on_the_gpu(run: Callable[[], None], count: int) -> dict[str, Any]:
    """The median of some runs by the wall, and one run under torch's profiler."""
    run(), run()
    now, times = clock(2, "cuda"), []
    for _ in range(count):
        begun = now()
        run()
        times.append(now() - begun)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        run()
        torch.cuda.synchronize()
    spent, launches = Counter[str](), Counter[str]()
    for event in found.events():
        if event.device_type == DeviceType.CUDA:
            name = event.name.removeprefix("void ").removeprefix("at::native::")[:28]
            spent[name] += event.device_time
            launches[name] += 1
    named = (f"{launches[name]}x {name} {us / 1e3:.3f}" for name, us in spent.most_common(NAMED))
    return {
        "wall_ms": f"{1e3 * statistics.median(times):.3f}",
        "gpu_ms": f"{sum(spent.values()) / 1e3:.3f}",
        "launches": sum(launches.values()),
        "kernels_ms": "; ".join(named),
    }


class Kernels:
    """Seconds in the kernels in C by name, while ``cpu.settings(around=Kernels(...))`` holds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.spent, self._now = Counter[str](), now

    def __call__(self, name: str, threads: int, run: Callable[[], None]) -> None:
        begun = self._now()
        run()
        self.spent[name] += self._now() - begun


def operations(run: Callable[[], object]) -> list[Any]:
    """Torch's operations in a call, by the time that each takes itself."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    return sorted(profiled.key_averages(), key=lambda row: -row.self_cpu_time_total)


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
    now = clock(args.threads, "cpu")
    kernels = Kernels(now)
    if args.decode:
        times, shape, dtype, phase = 20, Shape(layers=4), torch.bfloat16, "decode"
    else:
        times, shape, dtype, phase = 1, Shape(heads=8, kv_heads=2, layers=1, width=args.width), torch.float32, "prefill"
    one = make(phase, args.method, shape, dtype, "cpu")
    given = shape.qkv(1 if args.decode else args.tokens, dtype)

    def run() -> None:
        for _ in range(times):
            if not args.decode:
                one.clear()
            one(*given)

    with torch.inference_mode(), cpu.settings(around=kernels):
        if args.decode:
            one.fill(args.tokens)
        one(*given), one(*given)  # the first calls build tables
        kernels.spent.clear()
        begun = now()
        run()
        each = times * shape.layers
        whole, spent = (now() - begun) / each, {name: seconds / each for name, seconds in kernels.spent.items()}
        found = operations(run)
    table = Table("part", "ms", "share", title=f"{args.method}, {args.tokens:,} tokens: {1e3 * whole:.3g} ms")
    for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1]):
        table.add_row(name, f"{1e3 * seconds:.3g}", f"{seconds / whole:.0%}")
    table.add_section()
    for row in found[: args.rows]:
        seconds = row.self_cpu_time_total / 1e6 / each
        table.add_row(row.key, f"{1e3 * seconds:.3g}", f"{seconds / whole:.0%}")
    table.add_section()
    calls = sum(row.count for row in found) / each
    table.add_row(f"outside of C, {calls:.0f} operations", "", f"{1 - sum(spent.values()) / whole:.0%}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
