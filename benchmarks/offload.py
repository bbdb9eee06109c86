"""A context whose keys and values are larger than the memory allowed, held in mapped files, against a run in memory.

A random Llama of 4 layers with 8 key-value heads of 128 in fp32, 32 KiB a token: 98,304 tokens are 3 GiB. Each run is a
process of its own that reads the same prompt in prefill chunks and goes on greedily:

- ``memory``: ``kv_tier="device"``, no limit;
- ``disk``: ``kv_tier="disk"`` under RLIMIT_DATA, which limits a process's private writable memory and does not count
  shared mappings of files;
- ``control``: ``kv_tier="device"`` under the same limit, to show that it bites: this one must fail.

The tokens and the logits of every step must be equal, to the bit. RssAnon and VmData are sampled from
/proc/self/status all along; both leave mapped files out. Linux only.

    python benchmarks/offload.py --method longheads
    python benchmarks/offload.py --tokens 8192 --limit-gb 0.6 --no-save
    python benchmarks/offload.py --growth
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from common import machine
from longspan.memory import KVStore
from longspan.methods.parse import parse_method
from memory import Peaks

LAYERS, KV_HEADS, HEAD, VOCABULARY = 4, 8, 128, 256
RESULTS = Path(__file__).parent / "results" / "offload.json"


def build(window: int, heads: int) -> LlamaForCausalLM:
    """Small but for its keys and values; weights wide enough that the tokens differ from one another."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=window,
        initializer_range=0.1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def child(args: argparse.Namespace) -> int:
    """One run; what it found goes to ``args.child`` as JSON, the tokens and logits beside it."""
    torch.set_num_threads(args.threads)
    if args.limited:
        limit = int(args.limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    out, found = Path(args.child), {"error": None}
    with Peaks() as peaks:
        model = build(args.window, args.heads)
        found["before"] = peaks.look()
        directory = args.kv_dir if args.kv_tier == "disk" else None
        report = longspan.extend(
            model, parse_method(args.method), window=args.window, kv_tier=args.kv_tier, kv_dir=directory
        )
        found["report"] = report.to_dict()
        cache = longspan.new_cache(model)
        ids = torch.randint(VOCABULARY, (1, args.tokens), generator=torch.Generator().manual_seed(1))
        tokens, logits, times = [], [], []
        try:
            start = time.perf_counter()
            for piece in ids.split(args.piece, dim=1):
                last = model(piece, cache=cache, logits_to_keep=1).logits[:, -1]
            found["prefill_seconds"] = time.perf_counter() - start
            for _ in range(args.new):
                logits.append(last[0].clone())
                tokens.append(int(last.argmax()))
                start = time.perf_counter()
                last = model(torch.tensor([[tokens[-1]]]), cache=cache, logits_to_keep=1).logits[:, -1]
                times.append(time.perf_counter() - start)
            found["decode_seconds"] = statistics.median(times)
        except (RuntimeError, MemoryError) as error:
            found["error"] = str(error).strip().splitlines()[0]
        held = cache.get_seq_length()
        found |= {"held_tokens": held, "cache_bytes": cache.bytes_by_tier, "kv_bytes": held * report.kv_bytes_per_token}
    found["peaks"] = peaks.peaks
    found["tokens"] = tokens
    if logits:
        torch.save(torch.stack(logits), out.with_suffix(".pt"))
    out.write_text(json.dumps(found))
    return 0


def run(name: str, args: argparse.Namespace, folder: Path, kv_tier: str, limited: bool) -> dict:
    """Start ``child`` and read what it found."""
    out = folder / f"{name}.json"
    command = [sys.executable, __file__, "--child", str(out), "--kv-tier", kv_tier, *(["--limited"] if limited else [])]
    for key in ("method", "tokens", "new", "piece", "window", "heads", "threads", "limit_gb", "kv_dir"):
        if getattr(args, key) is not None:
            command += [f"--{key.replace('_', '-')}", str(getattr(args, key))]
    done = subprocess.run(command, capture_output=True, text=True)
    if not out.exists():
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": reason, "tokens": [], "peaks": None}
    return json.loads(out.read_text())


def mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"


def offload(args: argparse.Namespace, console: Console) -> int:
    plans = [("memory", "device", False), ("disk", "disk", True), ("control", "device", True)]
    runs, wrong = {}, []
    limit = f"RLIMIT_DATA {args.limit_gb:g} GB for disk and control"
    table = Table(title=f"{args.method}, {args.tokens:,} tokens, {limit}")
    for column in ("run", "peak RssAnon", "peak VmData", "keys and values", "prefill", "a token", "outcome"):
        table.add_column(column, justify="left" if column in ("run", "outcome") else "right")
    with tempfile.TemporaryDirectory() as folder:
        for name, tier, limited in plans:
            with console.status(f"{name} …"):
                runs[name] = found = run(name, args, Path(folder), tier, limited)
            cells = ["", "", "", "", ""]
            if found["peaks"] is not None:
                cells[:3] = mib(found["peaks"]["RssAnon"]), mib(found["peaks"]["VmData"]), mib(found["kv_bytes"])
            if found["error"] is None:
                cells[3:] = f"{found['prefill_seconds']:.0f} s", f"{1000 * found['decode_seconds']:.0f} ms"
            failed = f"failed at {found.get('held_tokens', 0):,} tokens"
            table.add_row(name, *cells, f"{len(found['tokens'])} tokens more" if found["error"] is None else failed)
        console.print(table)
        for name in ("memory", "disk"):
            if runs[name]["error"] is not None:
                wrong.append(f"{name} failed: {runs[name]['error']}")
        if runs["control"]["error"] is None:
            wrong.append("the control did not fail: the limit is too high to show anything")
        else:
            console.print(f"control: {runs['control']['error']}")
        if not wrong:
            logits = [torch.load(Path(folder) / f"{name}.pt") for name in ("memory", "disk")]
            off = float((logits[0] - logits[1]).abs().max())
            ours, theirs = runs["disk"]["tokens"], runs["memory"]["tokens"]
            if ours != theirs or off != 0:
                equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
                wrong.append(f"{equal} of {len(theirs)} tokens are equal, and logits differ by up to {off:.2e}")
            else:
                console.print(f"{len(theirs)} equal tokens, {len(set(theirs))} different ones; equal logits")
    for line in wrong:
        console.print(f"[red]{line}[/]")
    if not args.no_save and not wrong:
        RESULTS.parent.mkdir(exist_ok=True)
        chosen = {key: value for key, value in vars(args).items() if key in ("method", "tokens", "limit_gb", "piece")}
        RESULTS.write_text(json.dumps({"settings": chosen, **machine(args.threads), "runs": runs}, indent=1) + "\n")
    return 1 if wrong else 0


def growth(args: argparse.Namespace, console: Console) -> int:
    """CPU microseconds a token for appending to one layer's store, by tier."""
    torch.set_num_threads(args.threads)
    table = Table(title=f"One layer of {KV_HEADS} heads of {HEAD}, bf16, {args.tokens:,} tokens; CPU time")
    for column in ("tier", "append in chunks of 512", "append one by one"):
        table.add_column(column, justify="right" if column != "tier" else "left")
    for tier in ("device", "host", "disk"):
        costs = []
        for piece in (512, 1):
            store = KVStore(tier, args.kv_dir if tier == "disk" else None)
            x = torch.randn(1, KV_HEADS, piece, HEAD).bfloat16()
            count = args.tokens // piece if piece > 1 else min(args.tokens, 16_384)
            start = time.process_time()
            for _ in range(count):
                store.append([x], x)
            costs.append((time.process_time() - start) / (count * piece) * 1e6)
        table.add_row(tier, f"{costs[0]:.2f} µs", f"{costs[1]:.1f} µs")
    console.print(table)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="longheads", help="name or name:key=value,…")
    parser.add_argument("--tokens", type=int, default=98_304)
    parser.add_argument("--new", type=int, default=32, help="tokens generated")
    parser.add_argument("--piece", type=int, default=2048, help="tokens of a prefill chunk")
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8, help="query heads")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit-gb", type=float, default=1.5, help="RLIMIT_DATA of the limited runs")
    parser.add_argument("--kv-dir", help="where the files lie; the system's folder for temporary files unless given")
    parser.add_argument("--no-save", action="store_true", help="leave the results file as it is")
    parser.add_argument("--growth", action="store_true", help="time the store instead, tier by tier")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kv-tier", default="device", help=argparse.SUPPRESS)
    parser.add_argument("--limited", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    return growth(args, Console()) if args.growth else offload(args, Console())


if __name__ == "__main__":
    sys.exit(main())
