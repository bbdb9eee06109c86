"""Methods that select keys: prefill against full causal flash attention, decoding against longspan's full and stock.

Prefill: one layer of 8 heads and 2 key-value heads of 64, fp32; what is compared with is torch's flash attention alone.
Decoding: four layers of Llama-3-8B's shape in bf16 over a cache of 64k tokens; stock is transformers' sdpa and
DynamicCache.

Contestants take turns within a round; reported is the median over rounds of the ratio in the same round. With one
thread the clock is the processor's, which leaves out the time that other programs had. Nothing is timed unless the
outputs are those of the fp64 oracle.

    python benchmarks/selecting.py                              # prefill at 16k and 64k, decoding at 64k
    python benchmarks/selecting.py --phases decode --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor

from attention import Stock
from common import Times, clock, save, take_turns
from longspan.attend import Attender
from longspan.calibration import Calibration, Projection
from longspan.methods import ESA, Full, LongHeads, Method
from longspan.oracle import best_chunks, best_tokens, chunk_scores, far_and_near, oracle, slots, token_scores
from longspan.rope import Rope, Table
from longspan.store import KVStore

RESULTS = Path(__file__).parent / "results" / "selecting.csv"
# (phase, contestant, over, length, the most that the ratio may be)
BARS = [
    ("prefill", "longheads 8 x 256", "flash", 16384, 0.35),
    ("prefill", "longheads 8 x 256", "flash", 65536, 0.12),
    ("decode", "longheads 16 x 256", "full", 65536, 1 / 7),
    ("decode", "esa 2048 + 4096, reduced 128", "full", 65536, 1 / 3.5),
]
LAYERS = 4  # what a step computes once, its plan, is shared by all layers of a model


def rope(width: int) -> Rope:
    return Rope(Table(1.0 / 500_000.0 ** (torch.arange(0, width, 2).double() / width)), width)


def make_qkv(tokens: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, tokens, width, generator=g, dtype=dtype) for h in (heads, kv_heads, kv_heads))
    return q, k, v


def random_calibration(size: int, channels: int) -> Calibration:
    """Maps of the right shape: what they hold decides what is chosen, not how long that takes."""
    maps = {0: Projection(torch.randn(size, channels), torch.randn(size, channels))}
    return Calibration(
        layers=maps,
        heads={0: Projection(torch.randn(1, 1, channels), torch.randn(1, 1, channels))},
        reduced=size,
        reduced_per_head=1,
        solver="closed_form",
        model_id="random",
        weights_sha256="0" * 64,
        dtype="float32",
        window=8192,
        tokens=1,
    )


def gate() -> list[str]:
    """What is wrong with the outputs, at small sizes: a prefill of 600 tokens and 8 steps."""
    window, n, scale = 128, 600, 0.125
    q, k, v = make_qkv(n, 8, 2, 64, torch.float32)
    turn, wrong = rope(64), []
    methods: list[Method] = [LongHeads(chunk_length=16, num_chunks=8), ESA()]
    for method in methods:
        method = method.resolve(window)
        attender, store = Attender(method, window), KVStore()
        cuts = [0, n - 8, *range(n - 7, n + 1)]
        pairs = list(zip(cuts[:-1], cuts[1:], strict=True))
        out = torch.cat(
            [attender(*(x[:, :, a:b] for x in (q, k, v)), turn, scale=scale, store=store) for a, b in pairs], 2
        )
        if isinstance(method, LongHeads):
            sizes = {"length": method.chunk_length, "local": 2, "window": window}
            scores = chunk_scores(q, k, v, turn, scale=scale, length=method.chunk_length)
            keep, rel = slots(best_chunks(scores, count=8, **sizes), **sizes)
        else:
            first = [(a, min(a + method.piece, n - 8)) for a in range(window, n - 8, method.piece)]
            pieces = [*first, *pairs[1:]]
            sizes = {"initial": method.initial, "local": method.local}
            chosen = best_tokens(token_scores(q, k), pieces, top_k=method.top_k, **sizes)
            keep, rel = far_and_near(chosen, pieces, n, far=method.far, **sizes)
        error = (out.double() - oracle(q, k, v, keep, rel, turn, scale=scale)).abs().max()
        if not error < 1e-4:
            wrong.append(f"{method.name}: off by {error:.1e}")
    return wrong


def prefill(length: int, rounds: int, now: Callable[[], float]) -> Times:
    q, k, v = make_qkv(length, 8, 2, 64, torch.float32)
    turn, window = rope(64), 2048
    methods: dict[str, Method] = {
        "longheads 8 x 256": LongHeads(chunk_length=256, num_chunks=8),
        "longheads 8 x 256, bounds": LongHeads(chunk_length=256, num_chunks=8, score="bounds"),
        "esa 32 + 1024 + 512": ESA(),
    }
    runs: dict[str, Callable[[], object]] = {
        "flash": lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=0.125)
    }
    for name, method in methods.items():
        attender = Attender(method.resolve(window), window)
        runs[name] = lambda attender=attender: attender(q, k, v, turn, scale=0.125, store=KVStore())
    return take_turns(runs, rounds, now)


def decode(length: int, rounds: int, now: Callable[[], float]) -> Times:
    heads, kv_heads, width, dtype, window = 32, 8, 128, torch.bfloat16, 8192
    turn, scale = rope(width), width**-0.5
    stock = Stock(heads, kv_heads, LAYERS)
    _, k, v = make_qkv(length, 1, kv_heads, width, dtype)
    stock.fill(k, v)
    step = make_qkv(1, heads, kv_heads, width, dtype)
    runs: dict[str, Callable[[], object]] = {"stock": lambda: stock(*step)}
    esa = ESA(initial=128, local=4096, top_k=2048, piece=512)
    calibration = random_calibration(128, kv_heads * width)
    for name, method, given in (
        ("full", Full(), None),
        ("longheads 16 x 256", LongHeads(chunk_length=256, num_chunks=16), None),
        ("longheads 16 x 256, mean", LongHeads(chunk_length=256, num_chunks=16, score="mean"), None),
        ("longheads 16 x 256, bounds", LongHeads(chunk_length=256, num_chunks=16, score="bounds"), None),
        ("esa 2048 + 4096, reduced 128", esa, calibration),
    ):
        attender = Attender(method.resolve(window), window, calibration=given)
        stores = [filled(attender, k, v, heads, turn, scale) for _ in range(LAYERS)]
        runs[name] = lambda attender=attender, stores=stores: [
            attender(*step, turn, scale=scale, store=store) for store in stores
        ]
    for run in runs.values():
        run(), run()  # the growth of buffers and tables is no part of a token's usual cost
    return take_turns(runs, rounds, now)


def filled(attender: Attender, k: Tensor, v: Tensor, heads: int, turn: Rope, scale: float) -> KVStore:
    """A store that holds random keys and values, and an index made of them, without a prefill."""
    store = KVStore()
    store.append([k] * attender.stored_rotations, v)
    store.index = attender.new_index(0, turn)
    if store.index is not None:
        for a in range(0, k.shape[2], 8192):
            q = torch.randn(1, heads, 8192, k.shape[3], dtype=k.dtype)
            own = [turn.pair(x) for x in (q, k[:, :, a : a + 8192])]
            store.index.extend(*own, v[:, :, a : a + 8192], [0], turn.paired(), scale)
    return store


def rows(phase: str, length: int, over: tuple[str, ...], times: Times) -> list[dict[str, object]]:
    def ratio(name: str, other: str) -> str:
        return f"{statistics.median(t[name] / t[other] for t in times):.4f}" if other in over else ""

    return [
        {
            "phase": phase,
            "length": length,
            "attention": name,
            "median_ms": f"{1000 * statistics.median(t[name] for t in times):.1f}",
            **{f"time_over_{other}": ratio(name, other) for other in ("flash", "full", "stock")},
            "rounds": len(times),
        }
        for name in times[0]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16384, 65536], help="of the prefill")
    parser.add_argument("--decode-length", type=int, default=65536)
    parser.add_argument("--phases", nargs="+", choices=("prefill", "decode"), default=["prefill", "decode"])
    parser.add_argument("--rounds", type=int, default=9, help="of prefills beyond 16k at most three")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    now, console = clock(args.threads), Console(width=140)
    found: list[dict[str, object]] = []
    with torch.inference_mode():
        if wrong := gate():
            console.print("[red]wrong outputs, so nothing is timed:[/] " + "; ".join(wrong))
            return 1
        if "decode" in args.phases:
            times = decode(args.decode_length, args.rounds, now)
            found += rows("decode", args.decode_length, ("full", "stock"), times)
        if "prefill" in args.phases:
            for length in args.lengths:
                rounds = args.rounds if length <= 16384 else min(args.rounds, 3)  # longer ones take minutes each
                found += rows("prefill", length, ("flash",), prefill(length, rounds, now))
    table = RichTable()
    for name in found[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in found:
        table.add_row(*(str(x) for x in row.values()))
    console.print(table)
    for phase, name, over, length, bar in BARS:
        for row in found:
            if (row["phase"], row["attention"], row["length"]) == (phase, name, length):
                value = float(str(row[f"time_over_{over}"]))
                verdict = "[green]met[/]" if value <= bar else "[red]missed[/]"
                console.print(f"{phase} {length}: {name} / {over} {value:.4f} ≤ {bar:.4f} {verdict}")
    if not args.no_save:
        save(RESULTS, found, args.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
