"""What a decoding step over pages takes of the host, before any kernel of a layer: time, and bytes to the device.

python benchmarks/paged_host.py [--rounds 41]

All that an engine's adapter and longspan compute once for all layers of a step is in: the requests, what each new token
sees, angles, and the places of bounds. Times are with page tables in the host's memory, on which the few operations of
a device are the host's, too; bytes are counted with them on torch's device ``meta``, which has no memory. One process
on one thread; the sizes take turns within a round, and a ratio is the median over rounds. DCA, StreamingLLM, and
LongHeads by bounds; a window of 4,096.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import longspan
from common import clock, machine, ratio, take_turns
from longspan.methods import Method
from longspan.paged.attention import PagedAttention
from longspan.paged.pages import NewTokens, Slots
from longspan.paged.step import Step
from longspan.rope import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.host_bytes import HostBytes

WINDOW, PAGE, HEAD = 4096, 16, 128
SIZES = [(1, 1024), (1, 131_072), (32, 16_384), (32, 131_072)]  # requests, tokens of each
CPU, META = torch.device("cpu"), torch.device("meta")
OUT = Path(__file__).parent / "results" / "vllm" / "host.json"
METHODS: dict[str, Method] = {
    "dca": longspan.DCA(),
    "streaming-llm": longspan.StreamingLLM(),
    "chosen chunks": longspan.LongHeads(score="bounds", remap="dca"),
}


def step(method: Method, requests: int, length: int, device: torch.device) -> Callable[[], None]:
    """What a decoding step of so many requests takes, the texts of each ``length`` tokens with the new one."""
    attention = PagedAttention(method.resolve(WINDOW), WINDOW)
    own = attention.tables.angles(Table(1.0 / 10_000.0 ** (torch.arange(0, HEAD, 2).double() / HEAD)))
    table = torch.zeros(requests, length // PAGE, dtype=torch.int32, device=device)
    places = torch.zeros(requests, dtype=torch.int64, device=device)

    def run() -> None:
        new = [NewTokens(n, length - 1 - n, 1, pages) for n, pages in enumerate(table.unbind())]
        made = Step(attention.tables, new, Slots(places, places, None), PAGE, table)
        made.key_cos_sin(own, device)
        few = made.few(device)
        assert few is not None
        few.angles(own)
        few.plan.ranges(device)
        assert few.plan.reach
        if attention.selection is not None:
            made.updates(attention.selection, device)

    return run


def named(requests: int, length: int) -> str:
    return f"{requests} x {length:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for name, method in METHODS.items():
        runs = {named(*size): step(method, *size, CPU) for size in SIZES}
        take_turns(runs, 2, clock(1))  # what a model keeps
        times, of = take_turns(runs, args.rounds, clock(1)), {}
        for each in SIZES:
            size, run = named(*each), step(method, *each, META)
            run()
            with HostBytes() as counted:
                run()
            of[size] = {
                "milliseconds": round(1e3 * statistics.median(one[size] for one in times), 3),
                "of 1 x 1,024": round(ratio(times, size, named(*SIZES[0])), 2),
                "bytes to the device": counted.copied,
                "bytes on the host": counted.made,
            }
        found[name] = of
        print(name, json.dumps(of, indent=1), flush=True)
    about = {**machine(1), "window": WINDOW, "page": PAGE, "rounds": args.rounds}
    OUT.write_text(json.dumps({**found, "about": about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
