"""This checkout against another one: prefill and decoding of one model by every method, in turns, in one process.

    git worktree add OTHER COMMIT
    python benchmarks/against.py OTHER              # into results/against.json
    python benchmarks/against.py OTHER --methods dca esa --windows 8

Both checkouts are loaded into one process, on one thread, where they share torch, the weights (those bundled here) and
the allocator: two processes of the same code differ by up to 15% in all of their rounds, by where their memory lies.
Three models read a prompt and decode in turns: the other checkout's, this one's, and this one's inside
``longspan.graphed``. A figure is the median over rounds of the ratio to the other checkout within a round, and then
the median over sets, each a process of its own. ``stock`` is the model as it is in place of both checkouts: its ratio
tells how much the machine adds, and its token what transformers' own Python and matrices take. The clock is the
process's own time. Where the other checkout does not run a method, its last word takes the place of the figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
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


class Checkout:
    """The modules of a checkout's ``longspan``, of which only one can be in ``sys.modules`` at a time."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.source = str(root / "src")
        with self.loaded() as longspan:
            found = Path(longspan.__file__ or "")
            if not found.is_relative_to(self.source):
                raise SystemExit(f"longspan was loaded from {found}, not from {self.source}")

    @contextmanager
    def loaded(self) -> Iterator[ModuleType]:
        """This checkout is what ``import longspan`` gives, and what transformers calls for attention."""
        sys.path.insert(0, self.source)
        sys.modules.update(self.modules)
        try:
            longspan = importlib.import_module("longspan")
            importlib.import_module("longspan.hf.interface").register()
            yield longspan
        finally:
            sys.path.remove(self.source)
            names = [name for name in sys.modules if name.partition(".")[0] == "longspan"]
            self.modules = {name: sys.modules.pop(name) for name in names}


class Clock:
    """A streamer that notes when the prompt and each token come."""

    def __init__(self) -> None:
        self.begun, self.times = time.process_time(), list[float]()

    def put(self, value: object) -> None:
        self.times.append(time.process_time())

    def end(self) -> None:
        """Nothing is left to note."""


def child(other: Path, spec: str, tokens: int, rounds: int) -> None:
    """Print what each round took, or why the other checkout does not run the method."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    theirs, ours = Checkout(other.resolve()), Checkout(ROOT)
    sides = {"other": theirs, "": ours}
    if spec != "stock":
        sides["graphed_"] = ours
    first = transformers.LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    models = {name: transformers.LlamaForCausalLM(deepcopy(first.config)).eval() for name in sides}
    for name, checkout in sides.items():
        models[name].load_state_dict(first.state_dict(), assign=True)
        models[name].generation_config = first.generation_config
        if spec == "stock":
            continue
        with checkout.loaded() as longspan:
            try:
                longspan.extend(models[name], spec)
            except Exception as error:
                if checkout is ours:
                    raise
                print(json.dumps(f"{type(error).__name__}: {error}"))
                return
    ids = torch.randint(3, first.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2}

    def seconds(name: str) -> tuple[float, float]:
        """Of a prefill, and of a token."""
        with sides[name].loaded():
            clock = Clock()
            models[name].generate(ids, max_new_tokens=1 + DECODED, streamer=clock, **settings)
        _, prompt_read, *_, last = clock.times
        return prompt_read - clock.begun, (last - prompt_read) / DECODED

    with torch.inference_mode(), ExitStack() as stack:
        if spec != "stock":
            with ours.loaded() as longspan:
                stack.enter_context(longspan.graphed(models["graphed_"]))
        for name in sides:
            seconds(name)  # what is made once
        taken, names = [], list(sides)
        for n in range(rounds):
            turn = n % len(names)
            found = {name: seconds(name) for name in names[turn:] + names[:turn]}
            prefill, token = found.pop("other")
            ratios = {}
            for name, (our_prefill, our_token) in found.items():
                ratios |= {f"{name}prefill": our_prefill / prefill, f"{name}decode": our_token / token}
            taken.append({**ratios, "prefill_seconds": found[""][0], "token_seconds": found[""][1]})
    print(json.dumps(taken))


def compare(other: Path, spec: str, tokens: int, rounds: int) -> list[dict[str, float]] | str:
    """What each round of one process took; or why the other checkout does not run the method."""
    command = [sys.executable, __file__, "--child", str(other), spec, str(tokens), str(rounds)]
    run = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    taken: list[dict[str, float]] | str = json.loads(run.stdout.splitlines()[-1])
    return taken


def of_sets(other: Path, spec: str, tokens: int, args: argparse.Namespace) -> dict[str, Any] | str:
    """The medians over sets of the medians over their rounds, and each set's ratios."""
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
        return child(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=9, help="of a set")
    parser.add_argument("--sets", type=int, default=5, help="processes")
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
