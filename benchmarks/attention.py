"""Attention and cache of Llama-3-8B's layer shape: longspan against stock transformers, in the same run.

Stock is what transformers runs between the projections: rotation by the model's cos and sin, ``DynamicCache.update``,
``sdpa_attention_forward``. longspan is ``Attender`` on the unrotated q, k, v with one ``KVStore`` a layer.

The contestants take turns within a round, and what is reported is the median over rounds of the ratio to stock in the
same round, so a busy machine slows all of them alike; with one thread, ``--clock cpu`` leaves out the time that other
programs had. Nothing is timed unless the outputs are right.

    python benchmarks/attention.py --threads 1 --clock cpu
    python benchmarks/attention.py --quick
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor
from transformers import DynamicCache, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

from common import save
from longspan.attend import Attender
from longspan.methods import METHODS
from longspan.oracle import oracle
from longspan.rope import Rope, Table
from longspan.store import KVStore

LAYERS, HEADS, KV_HEADS, HEAD, WINDOW = 2, 32, 8, 128, 8192
SCALE = HEAD**-0.5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAX_PREFILL = 16384  # a 64k prefill takes minutes a round on a core, and its ratio is 16k's or better
RESULTS = Path(__file__).parent / "results" / "attention.csv"
# (phase, contestant, over, length, the most that the ratio may be)
BARS = [
    ("decode", "full", "stock", 65536, 1 / 3),
    ("prefill", "dca", "stock", 16384, 1.05),
    ("decode", "dca", "full", 65536, 1.10),
]

QKV = tuple[Tensor, Tensor, Tensor]


def config(heads: int = HEADS, kv_heads: int = KV_HEADS) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=heads * HEAD,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD,
        num_hidden_layers=LAYERS,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        attn_implementation="sdpa",
    )


class Stock:
    """The attention of some layers as transformers runs it."""

    name = "stock"

    def __init__(self, heads: int = HEADS, kv_heads: int = KV_HEADS, layers: int = LAYERS) -> None:
        cfg = config(heads, kv_heads)
        self.rotary = LlamaRotaryEmbedding(cfg)
        with torch.device("meta"):  # only the attributes that the attention function reads
            self.modules = [LlamaAttention(cfg, n) for n in range(layers)]
        self.cache = DynamicCache()

    def fill(self, k: Tensor, v: Tensor) -> None:
        self.cache = DynamicCache()
        for n in range(len(self.modules)):
            self.cache.update(k, v, n)

    def clear(self) -> None:
        self.cache = DynamicCache()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past = self.cache.get_seq_length()
        cos, sin = self.rotary(q, torch.arange(past, past + q.shape[2])[None])
        for n, module in enumerate(self.modules):
            turned_q, turned_k = apply_rotary_pos_emb(q, k, cos, sin)
            keys, values = self.cache.update(turned_k, v, n)
            out, _ = sdpa_attention_forward(module, turned_q, keys, values, None, scaling=SCALE)
        return out.transpose(1, 2)


class Longspan:
    """Two layers' attention as longspan runs it under one method."""

    def __init__(self, name: str, window: int = WINDOW) -> None:
        self.name = name
        self.method = METHODS[name]().resolve(window)
        self.attender = Attender(self.method, window)
        self.rope = Rope(Table(LlamaRotaryEmbedding(config()).inv_freq), HEAD)
        self.clear()

    def fill(self, k: Tensor, v: Tensor) -> None:
        self.clear()
        for store in self.stores:
            store.append([k] * self.attender.stored_rotations, v)

    def clear(self) -> None:
        self.stores = [KVStore() for _ in range(LAYERS)]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for store in self.stores:
            out = self.attender(q, k, v, self.rope, scale=SCALE, store=store)
        return out


Contestant = Stock | Longspan


def make_qkv(tokens: int, dtype: torch.dtype, heads: int = HEADS, kv_heads: int = KV_HEADS) -> QKV:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, h, tokens, HEAD, generator=g, dtype=dtype) for h in (heads, kv_heads, kv_heads))


def gate(dtype: torch.dtype) -> list[str]:
    """What is wrong with the outputs, at a small length and few heads; prefill, then a step of decoding."""
    n, window, heads, kv_heads = 600, 128, 8, 2
    q, k, v = qkv = make_qkv(n, dtype, heads, kv_heads)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    full = METHODS["full"]().resolve(window)
    rope = Longspan("full", window).rope
    truth = oracle(q, k, v, full.keep(i, j), full.rel(i, j), rope, scale=SCALE)
    stock_out = both_phases(Stock(heads, kv_heads), qkv)
    budget = 3 * (stock_out.double() - truth).abs().max() + torch.finfo(dtype).eps * truth.abs().max()
    wrong = []
    for name in ("full", "dca"):
        runner = Longspan(name, window)
        expected = oracle(q, k, v, runner.method.keep(i, j), runner.method.rel(i, j), rope, scale=SCALE)
        error = (both_phases(runner, qkv).double() - expected).abs().max()
        if not error <= budget:  # a NaN is wrong too
            wrong.append(f"{name}: off by {error:.2e}, budget {budget:.2e}")
    return wrong


def both_phases(run: Contestant, qkv: QKV) -> Tensor:
    n = qkv[0].shape[2]
    pieces = [tuple(x[:, :, a:b] for x in qkv) for a, b in ((0, n - 1), (n - 1, n))]
    return torch.cat([run(*piece) for piece in pieces], dim=2)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter


def timed(work: Callable[[], object]) -> float:
    start = clock()
    work()
    return clock() - start


def prefill(length: int, dtype: torch.dtype, rounds: int, heads: int) -> list[dict[str, float]]:
    """Seconds of a whole prefill for each contestant, round by round."""
    kv_heads = max(1, heads * KV_HEADS // HEADS)
    runs: list[Contestant] = [Stock(heads, kv_heads), Longspan("full"), Longspan("dca")]
    qkv = make_qkv(length, dtype, heads, kv_heads)
    times = []
    for n in range(rounds):
        times.append({})
        for run in runs[n % len(runs) :] + runs[: n % len(runs)]:
            times[-1][run.name] = timed(lambda run=run: run(*qkv))
            run.clear()
            gc.collect()
    return times


def decode(length: int, dtype: torch.dtype, rounds: int) -> list[dict[str, float]]:
    """Seconds a token for each contestant, round by round, over caches filled to ``length`` with random keys."""
    runs: list[Contestant] = [Stock(), Longspan("full"), Longspan("dca")]
    _, k, v = make_qkv(length, dtype, heads=1)
    for run in runs:
        run.fill(k, v)
    step = make_qkv(1, dtype)
    for run in runs:
        run(*step), run(*step)  # the store's growth and the tables' are no part of a token's usual cost
    times = []
    for n in range(rounds):
        order = runs[n % len(runs) :] + runs[: n % len(runs)]
        times.append({run.name: timed(lambda run=run: run(*step)) for run in order})
    return times


def rows(phase: str, dtype: str, length: int, heads: int, times: list[dict[str, float]]) -> list[dict[str, object]]:
    def ratio(name: str, over: str) -> str:
        return f"{statistics.median(t[name] / t[over] for t in times):.3f}"

    return [
        {
            "phase": phase,
            "dtype": dtype,
            "length": length,
            "heads": heads,
            "attention": name,
            "median_ms": f"{1000 * statistics.median(t[name] for t in times):.1f}",
            "time_over_stock": ratio(name, "stock"),
            "time_over_full": ratio(name, "full"),
            "rounds": len(times),
        }
        for name in ("stock", "full", "dca")
    ]


def show(console: Console, table_rows: list[dict[str, object]]) -> None:
    table = RichTable(title="Two layers, four heads a key-value head, size 128; prefill whole, decode per token")
    for name in table_rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in table_rows:
        table.add_row(*(str(x) for x in row.values()))
    console.print(table)
    for phase, name, over, length, bar in BARS:
        for row in table_rows:
            if (row["phase"], row["attention"], row["length"]) == (phase, name, length):
                value = float(str(row[f"time_over_{over}"]))
                verdict = "[green]met[/]" if value <= bar else "[red]missed[/]"
                what = f"{phase} {row['dtype']} {length}: {name} / {over}"
                console.print(f"{what} {value:.3f} ≤ {bar:.3f} {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--phases", nargs="+", choices=("prefill", "decode"), default=["prefill", "decode"])
    parser.add_argument("--rounds", type=int, default=9, help="decoding rounds; prefill takes a third of them")
    parser.add_argument("--prefill-heads", type=int, default=HEADS, help="fewer for a first look")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu time is meaningful with one thread only")
    parser.add_argument("--quick", action="store_true", help="1k and 2k tokens, few rounds, no results file")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads != 1:
        parser.error("--clock cpu needs --threads 1")
    if args.quick:
        args.lengths, args.rounds, args.prefill_heads = [1024, 2048], 3, 8
    global clock
    clock = CLOCKS[args.clock]
    torch.set_num_threads(args.threads)
    console = Console()
    results: list[dict[str, object]] = []
    with torch.inference_mode():
        for dtype in args.dtypes:
            if wrong := gate(DTYPES[dtype]):
                console.print(f"[red]{dtype}: wrong outputs, so nothing is timed:[/] " + "; ".join(wrong))
                return 1
        for dtype in args.dtypes:
            for length in args.lengths:
                if "prefill" in args.phases and length <= MAX_PREFILL:
                    times = prefill(length, DTYPES[dtype], max(3, args.rounds // 3), args.prefill_heads)
                    results += rows("prefill", dtype, length, args.prefill_heads, times)
                elif "prefill" in args.phases:
                    console.print(f"prefill of {length} skipped: minutes a round; see MAX_PREFILL")
                if "decode" in args.phases:
                    results += rows("decode", dtype, length, HEADS, decode(length, DTYPES[dtype], args.rounds))
    show(console, results)
    if not args.quick:
        save(RESULTS, results, args.threads, args.clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
