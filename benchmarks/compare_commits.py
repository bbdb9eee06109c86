"""Prefill and decoding of this checkout over another commit's, by method, interleaved in one process.

    git worktree add OTHER COMMIT
    python benchmarks/compare_commits.py OTHER
    python benchmarks/compare_commits.py OTHER --methods dca esa --windows 8 --out ratios.json

Both checkouts share torch, the bundled weights and the allocator: two processes of the same code differ by up to 15% in
all of their rounds, by where their memory lies. A ratio is the median over rounds of the ratio within a round, and then
the median over sets, each a process of its own. The clock is the process's own time on one thread. ``stock`` runs the
unchanged model on both sides, so its ratio is the noise. The exit status is 1 if a ratio exceeds ``--most``.
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
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType

from common import machine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src/longspan/bundled"
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
        """Make ``import longspan`` and transformers' attention those of this checkout."""
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
    """A streamer that records the times of the prompt and of each token."""

    def __init__(self) -> None:
        self.begun, self.times = time.process_time(), list[float]()

    def put(self, value: object) -> None:
        self.times.append(time.process_time())

    def end(self) -> None:
        """Ignored."""


def child(other: Path, spec: str, tokens: int, rounds: int) -> None:
    """Print the ratios of one process, ``{"prefill": ..., "decode": ...}``, or the other checkout's error."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sides = {"other": Checkout(other.resolve()), "ours": Checkout(ROOT)}
    first = transformers.LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    models = {name: transformers.LlamaForCausalLM(deepcopy(first.config)).eval() for name in sides}
    for name, checkout in sides.items():
        models[name].load_state_dict(first.state_dict(), assign=True)
        models[name].generation_config = first.generation_config
        with checkout.loaded() as longspan:
            try:
                spec == "stock" or longspan.extend(models[name], spec)
            except Exception as error:
                if name == "ours":
                    raise
                print(json.dumps(f"{type(error).__name__}: {error}"))
                return
    ids = torch.randint(3, first.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2}

    def seconds(name: str) -> dict[str, float]:
        with sides[name].loaded():
            clock = Clock()
            models[name].generate(ids, max_new_tokens=1 + DECODED, streamer=clock, **settings)
        _, prompt_read, *_, last = clock.times
        return {"prefill": prompt_read - clock.begun, "decode": last - prompt_read}

    ratios = []
    with torch.inference_mode():
        for n in range(1 + rounds):
            found = {name: seconds(name) for name in sorted(sides, reverse=n % 2 == 1)}
            ratios.append({part: found["ours"][part] / found["other"][part] for part in found["ours"]})
    # The first round builds kernels and tables.
    print(json.dumps({part: statistics.median(one[part] for one in ratios[1:]) for part in ratios[0]}))


def compare(other: Path, spec: str, tokens: int, rounds: int) -> dict[str, float] | str:
    """The median ratios of one process, or the other checkout's error."""
    command = [sys.executable, __file__, "--child", str(other), spec, str(tokens), str(rounds)]
    run = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    ratios: dict[str, float] | str = json.loads(run.stdout.splitlines()[-1])
    return ratios


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4], help="length of the prompt, in windows")
    parser.add_argument("--rounds", type=int, default=9, help="of a set")
    parser.add_argument("--sets", type=int, default=3, help="processes")
    parser.add_argument("--most", type=float, default=1.03, help="largest ratio that passes")
    parser.add_argument("--out", type=Path, help="a JSON file for the ratios")
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", args.other, "rev-parse", "--short", "HEAD"], text=True).strip()
    rows, slower = [], 0
    for spec in args.methods:
        for windows in args.windows:
            sets = [compare(args.other, spec, 512 * windows - DECODED - 1, args.rounds) for _ in range(args.sets)]
            row: dict[str, object] = {"method": spec, "windows": windows}
            for part in ("prefill", "decode"):
                ratios = [one if isinstance(one, str) else round(one[part], 3) for one in sets]
                failed = next((one for one in ratios if isinstance(one, str)), None)
                row[part] = failed or statistics.median(ratios)  # type: ignore[type-var]
                row[f"{part}_by_set"] = ratios
                slower += failed is None and row[part] > args.most  # type: ignore[operator]
            rows.append(row)
            print(row, flush=True)
    if args.out is not None:
        body = {"against": commit, "sets": args.sets, "rounds": args.rounds, "rows": rows, **machine(1)}
        args.out.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{slower} ratios over {args.most} against {commit}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
