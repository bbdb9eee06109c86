"""This checkout against another one: prefill and decoding of one model by every method, in turns, in one run.

    git worktree add OTHER COMMIT
    python benchmarks/against.py OTHER              # into results/against.json
    python benchmarks/against.py OTHER --methods dca esa --windows 8
    python benchmarks/against.py OTHER --graphed

Each checkout has a process of its own for each method, both on one thread and with the same weights, those bundled
here. They are told in turns to read a prompt and to decode, so that a busy moment meets both; a figure is the median
over rounds of the ratio within a round, and over pairs of processes: one pair may differ from the next by 15% in all
of its rounds. ``stock`` is the model as it is, in both: its ratio tells how much the machine adds, and its token what
transformers' own Python and matrices take. The clock is each process's own time. Where the other checkout does not
run a method, its last word takes the place of the figures. With ``--graphed`` this checkout decodes inside
``longspan.graphed``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from common import machine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src/longspan/bundled"
RESULTS = Path(__file__).parent / "results" / "against.json"
METHODS = (
    "stock", "full", "yarn", "rerope", "self-extend", "string", "streaming-llm", "lm-infinite", "dca", "longheads",
    "longheads:score=bounds", "esa", "infllm",
)  # fmt: skip
DECODED = 32  # tokens in a round


def child(folder: str, spec: str, tokens: int, graphed: bool) -> None:
    """Read the prompt and decode each time a line comes; print the seconds of both."""
    import torch
    import transformers

    import longspan

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if spec != "stock":
        longspan.extend(model, spec)
    ids = torch.randint(3, model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    print("ready", flush=True)
    with torch.inference_mode(), longspan.graphed(model) if graphed else nullcontext():
        for _ in sys.stdin:
            clock = Clock()
            model.generate(ids, max_new_tokens=1 + DECODED, streamer=clock, **settings)
            _, first, *_, last = clock.times
            print(json.dumps([first - clock.begun, (last - first) / DECODED]), flush=True)


class Clock:
    """A streamer that notes when the prompt and each token come."""

    def __init__(self) -> None:
        self.begun, self.times = time.process_time(), list[float]()

    def put(self, value: object) -> None:
        self.times.append(time.process_time())

    def end(self) -> None:
        """Nothing is left to note."""


class Checkout:
    """A process that runs the code of a checkout."""

    def __init__(self, root: Path, spec: str, tokens: int, graphed: bool) -> None:
        paths = os.pathsep.join(str(root / part) for part in ("src", "eval/src", "benchmarks"))
        self.process = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--child",
                str(ROOT / "src/longspan/bundled"),
                spec,
                str(tokens),
                "graphed" * graphed,
            ],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str | None:
        """The next line; None where the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip() or None

    def times(self) -> list[float]:
        """Seconds of a prefill, and of a token."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        line = self.line()
        if line is None:
            raise SystemExit(self.process.stderr.read() if self.process.stderr else "the process has ended")
        return [float(x) for x in json.loads(line)]


def compare(other: Path, spec: str, tokens: int, rounds: int, graphed: bool) -> list[dict[str, float]] | str:
    """What each round of a pair of processes took; or why the other checkout does not run the method."""
    ours, theirs = Checkout(ROOT, spec, tokens, graphed and spec != "stock"), Checkout(other, spec, tokens, False)
    try:
        if ours.line() != "ready":
            raise SystemExit(ours.process.communicate()[1])
        if theirs.line() != "ready":
            return (theirs.process.communicate()[1].strip().splitlines() or ["it ended"])[-1]
        both = (ours, theirs)
        for side in both:
            side.times()  # what is made once
        taken = []
        for n in range(rounds):
            found = {side: side.times() for side in (both if n % 2 else both[::-1])}
            (prefill, token), (other_prefill, other_token) = found[ours], found[theirs]
            ratios = {"prefill": prefill / other_prefill, "decode": token / other_token}
            taken.append({**ratios, "prefill_seconds": prefill, "token_seconds": token})
        return taken
    finally:
        for side in (ours, theirs):
            side.process.kill()
            side.process.wait()


def of_pairs(other: Path, spec: str, tokens: int, args: argparse.Namespace) -> dict[str, Any] | str:
    """The medians over pairs of processes of the medians over their rounds, and each pair's ratios."""
    pairs = []
    for _ in range(args.pairs):
        taken = compare(other, spec, tokens, args.rounds, args.graphed)
        if isinstance(taken, str):
            return taken
        pairs.append({name: statistics.median(one[name] for one in taken) for name in taken[0]})
    medians = {name: float(f"{statistics.median(pair[name] for pair in pairs):.4g}") for name in pairs[0]}
    each = {f"{name}_by_pair": sorted(round(pair[name], 3) for pair in pairs) for name in ("prefill", "decode")}
    return {**medians, **each}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3], int(sys.argv[4]), bool(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7, help="in a pair of processes")
    parser.add_argument("--pairs", type=int, default=5, help="of processes, since they differ more than rounds do")
    parser.add_argument("--graphed", action="store_true", help="decode inside longspan.graphed here")
    parser.add_argument("--out", type=Path, help="results/against.json, or against-graphed.json, unless given")
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", args.other, "rev-parse", "--short", "HEAD"], text=True).strip()
    found: dict[str, dict[str, dict[str, Any] | str]] = {}
    for spec in args.methods:
        found[spec] = {}
        for windows in args.windows:
            row = found[spec][str(windows)] = of_pairs(args.other, spec, 512 * windows - DECODED - 1, args)
            print(f"{spec}, {windows} windows: {row}", flush=True)
    out = args.out or (RESULTS.with_stem("against-graphed") if args.graphed else RESULTS)
    asked = {"against": commit, "graphed": args.graphed, "pairs": args.pairs, "rounds": args.rounds}
    out.write_text(json.dumps({**asked, "ratios": found, **machine(1)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
