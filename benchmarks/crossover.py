"""How much faster choosing keys is than reading all of them, by length: what ``method="auto"`` goes by.

The bundled model reads a text of 1 to 32 windows and goes on for 16 tokens, by Dual Chunk Attention, which keeps every
key, and by the methods that ``auto`` takes for longer texts. Contestants take turns within a round; reported is the
median over rounds of the time over DCA's in the same round. With one thread the clock is the process's.

    python benchmarks/crossover.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import longspan
from common import clock, ratio, save, take_turns
from longspan.bundled import FOLDER, load_bundled
from longspan.model.auto import CROSSOVER
from longspan_eval.filler import load_filler

RESULTS = Path(__file__).parent / "results" / "crossover.csv"
CALIBRATION = FOLDER / "calibration.safetensors"
ROWS: dict[str, tuple[longspan.methods.Method, Path | None]] = {
    "dca": (longspan.DCA(), None),
    "longheads, bounds": (longspan.LongHeads(score="bounds"), None),
    "esa, calibrated": (longspan.ESA(), CALIBRATION),
    "esa, exact scores": (longspan.ESA(), None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="lengths in windows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    now, console = clock(args.threads), Console(width=120)
    models = {}
    for name, (method, calibration) in ROWS.items():
        models[name], tokenizer = load_bundled()
        longspan.extend(models[name], method, calibration=calibration)
    window = models["dca"].config.max_position_embeddings
    prose = load_filler(tokenizer, "prose")
    found: list[dict[str, object]] = []
    for multiple in args.windows:
        ids = torch.tensor([prose.before(0, multiple * window - 16)])
        runs = {
            name: lambda model=model, ids=ids: model.generate(
                ids, max_new_tokens=16, min_new_tokens=16, do_sample=False
            )
            for name, model in models.items()
        }
        for run in runs.values():
            run()
        times = take_turns(runs, args.rounds, now)
        for name in runs:
            seconds = statistics.median(t[name] for t in times)
            found.append(
                {"windows": multiple, "tokens": multiple * window, "method": name, "seconds": f"{seconds:.3f}"}
            )
            found[-1] |= {"time_over_dca": f"{ratio(times, name, 'dca'):.3f}", "rounds": args.rounds}
    table = Table("windows", "tokens", *ROWS, title="time over DCA's")
    for multiple in args.windows:
        cells = [str(row["time_over_dca"]) for row in found if row["windows"] == multiple]
        table.add_row(f"{multiple}x", f"{multiple * window:,}", *cells)
    console.print(table)
    for name in ("longheads, bounds", "esa, calibrated"):
        faster = [int(str(r["windows"])) for r in found if r["method"] == name and float(str(r["time_over_dca"])) <= 1]
        console.print(
            f"{name}: no slower than DCA at {', '.join(f'{n}x' for n in faster) or 'none'} (auto: {CROSSOVER}x)"
        )
    if not args.no_save:
        save(RESULTS, found, args.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
