"""This checkout against another one: prefill and decoding of one model by every method, in turns, in one run.

    git worktree add OTHER COMMIT
    python benchmarks/against.py OTHER              # into results/against.json
    python benchmarks/against.py OTHER --methods dca esa --windows 8

Each checkout has a process of its own for each method, both on one thread and with the same weights, those bundled
here; a third runs this checkout inside ``longspan.graphed``. They are told in turns to read a prompt and to decode, so
that a busy moment meets all; a figure is the median over rounds of the ratio to the other checkout within a round, and
over sets of processes: one set may differ from the next by 15% in all of its rounds. All have huge
pages. ``stock`` is the model as it is, in both: its ratio tells how much the machine adds, and its token what
transformers' own Python and matrices take. The clock is each process's own time. Where the other checkout does not
run a method, its last word takes the place of the figures.
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

    def __init__(self, root: Path, spec: str, tokens: int, *, graphed: bool = False) -> None:
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
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "OMP_NUM_THREADS": "1",
                "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            },
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


def compare(other: Path, spec: str, tokens: int, rounds: int) -> list[dict[str, float]] | str:
    """What each round of a set of processes took; or why the other checkout does not run the method."""
    theirs = Checkout(other, spec, tokens)
    ours = {"": Checkout(ROOT, spec, tokens)}
    if spec != "stock":
        ours["graphed_"] = Checkout(ROOT, spec, tokens, graphed=True)
    sides = [*ours.values(), theirs]
    try:
        for side in ours.values():
            if side.line() != "ready":
                raise SystemExit(side.process.communicate()[1])
        if theirs.line() != "ready":
            return (theirs.process.communicate()[1].strip().splitlines() or ["it ended"])[-1]
        for side in sides:
            side.times()  # what is made once
        taken = []
        for n in range(rounds):
            turn = n % len(sides)
            found = {side: side.times() for side in sides[turn:] + sides[:turn]}
            prefill, token = found[theirs]
            ratios = {}
            for name, side in ours.items():
                ratios[f"{name}prefill"] = found[side][0] / prefill
                ratios[f"{name}decode"] = found[side][1] / token
            taken.append({**ratios, "prefill_seconds": found[ours[""]][0], "token_seconds": found[ours[""]][1]})
        return taken
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()


def of_sets(other: Path, spec: str, tokens: int, args: argparse.Namespace) -> dict[str, Any] | str:
    """The medians over sets of processes of the medians over their rounds, and each set's ratios."""
    sets = []
    for _ in range(args.sets):
        taken = compare(other, spec, tokens, args.rounds)
        if isinstance(taken, str):
            return taken
        sets.append({name: statistics.median(one[name] for one in taken) for name in taken[0]})
    medians = {name: float(f"{statistics.median(one[name] for one in sets):.4g}") for name in sets[0]}
    ratios = [name for name in medians if not name.endswith("seconds")]
    return {**medians, "by_set": {name: sorted(round(one[name], 3) for one in sets) for name in ratios}}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3], int(sys.argv[4]), bool(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3, help="of a set of processes")
    parser.add_argument("--sets", type=int, default=7, help="of processes, since they differ more than rounds do")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", args.other, "rev-parse", "--short", "HEAD"], text=True).strip()
    found: dict[str, dict[str, dict[str, Any] | str]] = {}
    for spec in args.methods:
        found[spec] = {}
        for windows in args.windows:
            row = found[spec][str(windows)] = of_sets(args.other, spec, 512 * windows - DECODED - 1, args)
            print(f"{spec}, {windows} windows: {row}", flush=True)
    asked = {"against": commit, "sets": args.sets, "rounds": args.rounds}
    args.out.write_text(json.dumps({**asked, "ratios": found, **machine(1)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
