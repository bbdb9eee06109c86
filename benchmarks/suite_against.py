"""What `make bench` times, with the code of this checkout and of another one, in turns in one process.

    git worktree add OTHER COMMIT
    python benchmarks/suite_against.py OTHER              # into results/suite-against.json
    python benchmarks/suite_against.py OTHER --methods esa --phases decode

For each case of ``suite.py`` and each of longspan's contestants, a figure is the median over rounds of the ratio to the
other checkout's time within a round, and then the median over sets, each a process of its own. Both checkouts share
torch and the allocator (see ``against.py``), the inputs are the same, and so have to be the outputs, up to rounding.
With one thread the clock is the process's own time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from against import ROOT, Checkout
from common import clock, machine

RESULTS = Path(__file__).parent / "results" / "suite-against.json"
PEERS = ("flash", "stock", "kvpress")  # of which no checkout has code
DECODING_ROUNDS, PREFILL_ROUNDS = 21, 3  # the least, since a token is short
ALIKE = {"fp32": 1e-4, "bf16": 3e-2}  # the largest difference of outputs, in parts of the largest number


def contestants(checkout: Checkout) -> ModuleType:
    """The checkout's ``contestants.py``, with its ``longspan``."""
    with checkout.loaded():
        spec = spec_from_file_location("contestants", Path(checkout.source).parent / "benchmarks" / "contestants.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules["contestants"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def child(other: Path, case: dict[str, Any], threads: int) -> None:
    """Print the ratio of this checkout's seconds to the other's in each round, and how far the outputs differ."""
    import torch

    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case["dtype"]]
    decoding, length, now = case["phase"] == "decode", case["length"], clock(threads)
    sides = {"other": Checkout(other.resolve()), "ours": Checkout(ROOT)}
    runs: dict[str, Any] = {}
    given: Any = None

    def seconds(name: str) -> tuple[float, Any]:
        if not decoding:
            runs[name].clear()
            gc.collect()
        with sides[name].loaded():
            begun = now()
            out = runs[name](*given)
            return now() - begun, out

    with torch.inference_mode():
        for name, checkout in sides.items():
            module = contestants(checkout)
            shape = module.Shape(**case["shape"])
            with checkout.loaded():
                runs[name] = module.make(case["phase"], case["method"], shape, dtype)
                if decoding:
                    runs[name].fill(length)
                else:
                    runs[name](*shape.qkv(512, dtype))  # what a first call sets up is no part of a prefill
            given = shape.qkv(1 if decoding else length, dtype)
        ours, others = seconds("ours")[1], seconds("other")[1]
        apart = float((ours - others).abs().max() / others.abs().max())
        del ours, others
        ratios, names = [], list(sides)
        for n in range(case["rounds"]):
            taken = {name: seconds(name)[0] for name in (names if n % 2 else names[::-1])}
            ratios.append(taken["ours"] / taken["other"])
    print(json.dumps({"ratios": ratios, "apart": apart}))


def compare(other: Path, case: dict[str, Any], threads: int) -> float:
    """The median over the rounds of one process; ends the run where the outputs differ."""
    command = [sys.executable, __file__, "--child", str(other), json.dumps(case), str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    found = json.loads(run.stdout.splitlines()[-1])
    if not found["apart"] <= ALIKE[case["dtype"]]:
        raise SystemExit(f"{case}: the outputs differ by {found['apart']:.1e} of the largest number")
    return statistics.median(found["ratios"])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
    from suite import plan

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", nargs="+", help="instead of all")
    parser.add_argument("--phases", nargs="+", choices=("prefill", "decode"), default=["decode", "prefill"])
    parser.add_argument("--sets", type=int, default=3, help="processes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", args.other, "rev-parse", "--short", "HEAD"], text=True).strip()
    rows = []
    for one in plan():
        for method in one.methods:
            if method in PEERS or one.phase not in args.phases or method not in (args.methods or [method]):
                continue
            rounds = max(one.rounds, DECODING_ROUNDS if one.phase == "decode" else PREFILL_ROUNDS)
            case = {**asdict(one), "method": method, "rounds": rounds}
            sets = sorted(round(compare(args.other, case, args.threads), 3) for _ in range(args.sets))
            told = {name: case[name] for name in ("phase", "dtype", "length", "method", "rounds")}
            rows.append({**told, "width": one.shape.width, "ratio": statistics.median(sets), "by_set": sets})
            print(rows[-1], flush=True)
    found = {"against": commit, "sets": args.sets, "rows": rows, **machine(args.threads)}
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
