"""The speed of attention and cache: longspan's methods, transformers with YaRN and kvpress, in one run.

    python benchmarks/suite.py                 # what `make bench` runs: two threads, under 15 minutes
    python benchmarks/suite.py --long          # all of Llama-3-8B's heads, also at 64k; hours
    python benchmarks/suite.py --quick         # a look at small lengths, nothing saved

Each case (a phase, a dtype and a length) runs in a process of its own, in which the contestants take turns; what is
reported is the median over rounds of a ratio within a round. Peak memory is of a process with one contestant. The floor
is what has to move (decoding) or be computed (prefill), over the machine's own rates measured in the same run
(``floors.py``). Nothing is timed that is not right (``gates.py``).

Prefills are of 8 query heads and 2 key-value heads of 128 in fp32, a quarter of a layer of Llama-3-8B, methods that
choose at a window of 2,048; decoding is of whole layers, four in bf16 (which share what a step makes once), over random
keys and values.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import clock, ratio, save, take_turns, version
from contestants import DECODE, GRAPH, PREFILL, Contestant, Shape, make, random_block, why_no_kvpress
from floors import Rates, floor_seconds, measure_rates
from gates import gate
from memory import DevicePeaks, Failed, Peaks, alone, resident
from report import growth

RESULTS = Path(__file__).parent / "results" / "speed"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRELOAD = ("contestants", "transformers.models.llama.modeling_llama")
MEMORY = (("prefill", "fp32", 16384), ("decode", "bf16", 65536))  # cases whose memory is measured
SHORT = 16384  # what a longer length of the same method is held against
QUARTER = Shape(heads=8, kv_heads=2, layers=1)
NARROW = replace(QUARTER, width=64)
WHOLE = Shape(layers=4)


@dataclass(frozen=True)
class Case:
    """What is timed together."""

    phase: str
    dtype: str
    length: int
    methods: tuple[str, ...]
    rounds: int
    shape: Shape
    against_short: bool = False  # each method's time at SHORT takes turns with its time at ``length``

    @property
    def text(self) -> str:
        heads = f"{self.shape.heads} heads of {self.shape.width}"
        return f"{self.phase} {self.length:,} {self.dtype}, {heads}, {self.rounds} rounds"


def plan(long: bool = False, quick: bool = False) -> list[Case]:
    """The cases of a run, shortest first."""
    if quick:
        methods = ("flash", "stock", "dca", "longheads", "esa"), ("stock", "full", "dca", "longheads", "esa")
        return [
            *(Case("prefill", "fp32", n, methods[0], 2, QUARTER) for n in (2048, 4096)),
            *(Case("decode", "bf16", n, methods[1], 3, WHOLE) for n in (8192, 16384)),
        ]
    linear = ("flash", "longheads")
    cases = [
        *(Case("decode", "bf16", n, DECODE, 9, WHOLE) for n in (4096, 16384, 65536)),
        Case("decode", "fp32", 65536, DECODE, 5, replace(WHOLE, layers=1)),
        Case("decode", "bf16", 262144, ("longheads", "longheads-mean"), 21, replace(WHOLE, layers=1), True),
        *(Case("prefill", "fp32", n, PREFILL, rounds, QUARTER) for n, rounds in ((4096, 3), (8192, 3), (16384, 3))),
        Case("prefill", "fp32", 16384, (*linear, "longheads-bounds", "esa"), 5, NARROW),
        Case("prefill", "fp32", 65536, linear, 3, QUARTER),
        Case("prefill", "fp32", 65536, linear, 1, NARROW),
    ]
    if long:
        whole = replace(WHOLE, layers=1)
        choosing = ("flash", "dca", "longheads", "longheads-mean", "longheads-bounds", "esa")
        cases += [
            Case("decode", "fp32", 16384, DECODE, 9, WHOLE),
            Case("decode", "bf16", 131072, DECODE, 5, replace(WHOLE, layers=1)),
            *(Case("prefill", dtype, 16384, PREFILL, 3, whole) for dtype in ("fp32", "bf16")),
            Case("prefill", "fp32", 65536, choosing, 3, whole),
            Case("prefill", "fp32", 131072, ("longheads", "longheads-mean", "longheads-bounds", "esa"), 3, QUARTER),
        ]
    return cases


@torch.inference_mode()
def timed(case: Case, threads: int, device: str = "cpu") -> list[dict[str, Any]]:
    """The rows of a case, without floors, and without memory on a CPU; in a process of its own."""
    torch.set_num_threads(threads)
    peaks = DevicePeaks(device)
    dtype, shape, now = DTYPES[case.dtype], case.shape, clock(threads, device)
    runs: dict[str, Callable[[], object]] = {}
    lengths: dict[str, tuple[str, int]] = {}
    by_name: dict[str, Contestant] = {}

    def add(name: str, method: str, length: int) -> None:
        one = make(case.phase, method, shape, dtype, device)
        by_name[name], lengths[name] = one, (method, length)
        if case.phase == "decode":
            peaks.filled(name, lambda: one.fill(length))
        runs[name] = lambda: one(*given)

    if case.phase == "decode":
        random_block(shape, dtype, device)  # it is nobody's
    for method in case.methods:
        add(method, method, case.length)
        if case.against_short:
            add(f"{method}, short", method, SHORT)
    given = shape.qkv(case.length if case.phase == "prefill" else 1, dtype, device)
    if case.phase == "decode":
        for run in runs.values():
            run(), run()  # the growth of buffers and tables is no part of a token's usual cost
    else:
        small = shape.qkv(512, dtype, device)
        for one in by_name.values():
            one(*small)  # what a first call sets up is no part of a prefill
            one.clear()

    def after(name: str) -> None:
        peaks.ran(name)
        if case.phase == "prefill":
            by_name[name].clear()
            gc.collect()
        peaks.begin()

    peaks.begin()
    times = take_turns(runs, case.rounds, now, after)
    rows = []
    for name, (method, length) in lengths.items():
        if length != case.length:
            continue
        row: dict[str, Any] = {
            "phase": case.phase,
            "dtype": case.dtype,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "width": shape.width,
            "layers": shape.layers,
            "length": length,
            "method": method,
            "seconds": f"{statistics.median(each[name] for each in times):.5f}",
            "rounds": len(times),
        }
        for over in ("flash", "stock", "full"):
            # What is replayed from a CUDA graph is held against what is, too.
            peer = f"{over}{GRAPH}" if name.endswith(GRAPH) and over == "full" else over
            row[f"over_{over}"] = f"{ratio(times, name, peer):.4f}" if peer in runs else ""
        row["over_short"] = f"{ratio(times, name, f'{name}, short'):.3f}" if case.against_short else ""
        if name in peaks.peaks:
            row["peak_mib"] = f"{peaks.peaks[name] / 2**20:.0f}"
        rows.append(row)
    return rows


@torch.inference_mode()
def peak_bytes(case: Case, method: str, threads: int) -> int:
    """The peak of anonymous memory in a prefill, or of the filled cache and a step, above the inputs and a small call.

    In a process of its own, on the CPU.
    """
    torch.set_num_threads(threads)
    dtype, shape = DTYPES[case.dtype], case.shape
    one = make(case.phase, method, shape, dtype)
    if case.phase == "decode":
        one.fill(64)
        one(*shape.qkv(1, dtype))
    else:
        one(*shape.qkv(64, dtype))
    one.clear()
    given = shape.qkv(case.length if case.phase == "prefill" else 1, dtype)
    gc.collect()
    before = resident()
    if case.phase == "decode":
        one.fill(case.length)  # what filling makes and drops is no part of it
        gc.collect()
    with Peaks() as peaks:
        one(*given)
    return peaks.peaks["RssAnon"] - before


def rates_of(dtype: str, threads: int, device: str = "cpu") -> Rates:
    """In a process of its own."""
    torch.set_num_threads(threads)
    return measure_rates(DTYPES[dtype], device, now=clock(threads, device))


def gated(methods: dict[str, tuple[str, ...]], dtype: str, device: str = "cpu") -> dict[str, str]:
    """In a process of its own."""
    with torch.inference_mode():
        return gate(methods, DTYPES[dtype], device)


def with_floor(row: dict[str, Any], rates: Rates, shape: Shape, device: str = "cpu") -> dict[str, Any]:
    """The row with its floor and how much of it was reached."""
    one = make(row["phase"], row["method"], shape, DTYPES[row["dtype"]], device)
    floor, seconds = floor_seconds(row["phase"], one, row["length"], rates), float(row["seconds"])
    return {
        **row,
        "floor_seconds": f"{floor:.6f}",
        "over_floor": f"{seconds / floor:.2f}",
        "of_floor": f"{floor / seconds:.3f}",
        "gb_per_s": f"{rates.bytes / 1e9:.1f}",
        "gflop_per_s": f"{rates.operations / 1e9:.1f}",
    }


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="seconds of a prefill or of a token; of_floor: the share of the machine's own rate reached")
    columns = ("phase", "dtype", "heads", "width", "length", "method", "seconds")
    columns += ("over_flash", "over_stock", "over_full", "over_short", "of_floor", "peak_mib")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    console.print(table)
    for row in growth(rows):
        console.print(
            f"{row['phase']} {row['dtype']} {row['method']}: time ~ length^{row['exponent']} ({row['lengths']})"
        )


def apart(device: str, work: Callable[..., Any], *given: Any) -> Any:
    """``work(*given)`` in a process of its own on a CPU.

    On a GPU in this one: torch says what each allocates there, and a process takes seconds to have the GPU at all.

    Raises:
        Failed: it raised.
    """
    if device == "cpu":
        return alone(work, *given, preload=PRELOAD)
    try:
        return work(*given)
    except Exception as error:
        torch.cuda.empty_cache()
        raise Failed(f"{work.__name__}{given}", f"{type(error).__name__}: {error}") from error


def right(console: Console, cases: list[Case], missing: str | None, device: str = "cpu") -> list[Case]:
    """The cases without what may not be timed: contestants whose gate is red, and those that cannot run."""
    kept = []
    reds: dict[str, dict[str, str]] = {}
    for dtype in dict.fromkeys(case.dtype for case in cases):
        methods = {case.phase + str(n): case.methods for n, case in enumerate(cases) if case.dtype == dtype}
        reds[dtype] = apart(device, gated, methods, dtype, device)
        for name, wrong in reds[dtype].items():
            console.print(f"[red]{dtype} {name}: wrong, so it is not timed:[/] {wrong}")
    for case in cases:
        out = {*reds[case.dtype], *(["kvpress"] if missing else [])}
        if left := tuple(name for name in case.methods if name not in out):
            kept.append(replace(case, methods=left))
    return kept


def run_cases(
    console: Console,
    cases: list[Case],
    threads: int,
    memory: tuple[tuple[str, str, int], ...],
    device: str = "cpu",
    keep: Callable[[list[dict[str, Any]]], object] = lambda rows: None,
) -> tuple[list[dict[str, Any]], int]:
    """The rows of all cases, and how many cases failed; one that fails is said to, and the others go on.

    ``keep`` is given the rows so far after each case, so that an interrupted run leaves what it measured.
    """
    rows: list[dict[str, Any]] = []
    rates: dict[str, Rates] = {}
    failed, begun = 0, time.monotonic()
    for case in cases:
        try:
            with console.status(case.text):
                if device == "cpu" or case.dtype not in rates:  # a CPU is not equally fast all the time
                    rates[case.dtype] = apart(device, rates_of, case.dtype, threads, device)
                found = apart(device, timed, case, threads, device)
                if not case.against_short and (case.phase, case.dtype, case.length) in memory:
                    for row in found:
                        peak = alone(peak_bytes, case, row["method"], threads, preload=PRELOAD)
                        row["peak_mib"] = f"{peak / 2**20:.0f}"
        except Failed as error:
            console.print(f"[red]{case.text}: {error}[/]")
            failed += 1
            continue
        rows += [with_floor(row, rates[case.dtype], case.shape, device) for row in found]
        keep(rows)
        console.print(f"{time.monotonic() - begun:5.0f} s  {case.text}")
    return rows, failed


def write(folder: Path, rows: list[dict[str, Any]], threads: int, device: str = "cpu") -> None:
    """The cases as CSV."""
    if rows:
        save(folder / "cases.csv", rows, threads, device=device, kvpress=version("kvpress") or "none")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="one: CPU time is measured, and not the wall's")
    parser.add_argument("--long", action="store_true", help="all heads, also at 64k; hours")
    parser.add_argument("--quick", action="store_true", help="small lengths, nothing saved")
    parser.add_argument("--phases", nargs="+", choices=("prefill", "decode"), default=["prefill", "decode"])
    parser.add_argument("--max-length", type=int, default=1 << 30, help="leave out longer cases")
    parser.add_argument("--width", type=int, help="only cases with heads of so many channels, 64 or 128")
    parser.add_argument("--no-memory", action="store_true", help="leave out the processes that measure memory")
    parser.add_argument(
        "--out", type=Path, help="folder of the CSV files (results/speed, with --long results/speed-long)"
    )
    args = parser.parse_args(argv)
    if args.threads < 1:
        parser.error(f"--threads is one or more, not {args.threads}")
    out = args.out or (RESULTS.with_name("speed-long") if args.long else RESULTS)
    console, begun = Console(width=150), time.monotonic()
    cases = [c for c in plan(args.long, args.quick) if c.phase in args.phases and c.length <= args.max_length]
    cases = [c for c in cases if args.width in (None, c.shape.width)]
    if not cases:
        parser.error("--phases, --max-length and --width leave no case")
    missing = alone(why_no_kvpress, preload=PRELOAD)
    if missing:
        console.print(f"[yellow]without kvpress:[/] {missing}")
    cases = right(console, cases, missing)
    memory = () if args.no_memory else MEMORY
    keep = (lambda rows: None) if args.quick else (lambda rows: write(out, rows, args.threads))
    rows, failed = run_cases(console, cases, args.threads, memory, keep=keep)
    show(console, rows)
    console.print(f"{(time.monotonic() - begun) / 60:.1f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
