"""How wrong `longspan doctor` is: its estimate beside what reading and writing took, at 8 to 64 windows.

The bundled model. For each method the doctor's own run, and then a text that is read in the doctor's prefill chunks up
to 64 windows, with tokens decoded at each length. The estimate for a length is fitted to the prefill chunks up to half
of it, which is what the doctor would have measured if asked for that length, so no estimate is of a length that was
measured. On one thread the clock is the process's own; tokens are compared by the lower quartile, as the doctor takes
them. A shared machine is half as fast again in some seconds as in others, so both take turns, and of each point the
fastest counts.

    python benchmarks/doctor.py
    python benchmarks/doctor.py --methods dca --windows 8 16 --no-save
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

import longspan
from common import between, clock, machine
from longspan import files
from longspan.bundled import load_bundled
from longspan.doctor.examine import SECONDS, multiplied
from longspan.doctor.measuring import PREFILL_CHUNK, Run, ladder, measure, rates, shapes, some_text
from longspan.doctor.work import Counter
from longspan.hf.attach import examine

RESULTS = Path(__file__).parent / "results" / "doctor.json"
DOCUMENT = Path(__file__).parents[1] / "docs" / "doctor.md"
MARKS = ("<!-- doctor -->", "<!-- /doctor -->")
BAR = 0.25
METHODS = ("dca", "longheads:score=bounds", "esa", "streaming-llm")
DECODED = 32
CPU = torch.device("cpu")


def measured(model: object, lengths: list[int], threads: int) -> dict[int, tuple[float, float]]:
    """Seconds of a prompt and of a token at each length."""
    now, found = clock(threads), {}
    ids = some_text(model, lengths[-1] + DECODED, CPU)
    cache, at, read = longspan.new_cache(model), 0, 0.0
    for length in lengths:
        while at < length:
            stop = min(at + PREFILL_CHUNK, length)
            begun = now()
            model(input_ids=ids[:, at:stop], cache=cache, logits_to_keep=1)
            read, at = read + now() - begun, stop
        waits = []
        for n in range(length, length + DECODED):
            begun = now()
            model(input_ids=ids[:, n : n + 1], cache=cache)
            waits.append(now() - begun)
        cache.crop(-DECODED)
        found[length] = read, sorted(waits)[DECODED // 4]
    return found


def fastest(runs: list[Run]) -> Run:
    """Of each point that all runs have, the fastest."""
    kinds = (
        [{(p.start, p.stop): p for p in getattr(run, kind)} for run in runs] for kind in ("prefill_chunks", "tokens")
    )
    prefill_chunks, tokens = (
        tuple(min((one[at] for one in kind), key=lambda p: p.seconds) for at in kind[0] if all(at in x for x in kind))
        for kind in kinds
    )
    return replace(runs[0], prefill_chunks=prefill_chunks, tokens=tokens)


def as_for(run: Run, length: int) -> Run:
    """What of a run the doctor would have measured if asked for this length: a ladder up to half of it."""
    prefill_chunks = run.prefill_chunks[: len(ladder(length // 2))]
    return replace(
        run,
        prefill_chunks=prefill_chunks,
        tokens=tuple(t for t in run.tokens if t.start <= max(prefill_chunks[-1].stop, length // 2)),
    )


def compared(method: str, windows: list[int], rounds: int, threads: int, seconds: float) -> list[dict[str, object]]:
    """A row for each length: estimate, measurement and error of both."""
    model, _ = load_bundled()
    window = model.config.max_position_embeddings
    lengths = [n * window for n in sorted(windows)]
    report, _, layers = examine(model, method, length=lengths[-1])
    longspan.extend(model, method, length=lengths[-1])
    runs, turns = [], []
    for _ in range(rounds):
        run = measure(model, CPU, lengths[-1] // 2, seconds)
        runs.append(run)
        with torch.inference_mode():
            turns.append(measured(model, lengths, threads))
    run, took = (
        fastest(runs),
        {n: tuple(min(x) for x in zip(*(turn[n] for turn in turns), strict=True)) for n in lengths},
    )
    sizes = shapes(layers, report.method.stored_rotations(report.window))
    counter = Counter(report.method, report.window, sizes, weights=multiplied(model))
    rows: list[dict[str, object]] = []
    for length, (read, token) in took.items():
        part = as_for(run, length)
        laws = rates(part, counter)
        guess = laws.prefill.seconds(counter.prompt(length, PREFILL_CHUNK)), laws.decode.seconds(counter.token(length))
        rows.append(
            {
                "method": method,
                "windows": length // window,
                "tokens": length,
                "fitted_up_to": part.length,
                "prefill_seconds": read,
                "prefill_estimate": guess[0],
                "prefill_error": guess[0] / read - 1,
                "token_seconds": token,
                "token_estimate": guess[1],
                "token_error": guess[1] / token - 1,
            }
        )
    return rows


def table(rows: list[dict[str, object]]) -> list[str]:
    """The rows as lines of Markdown: measured, estimated and the error, of reading and of a token."""
    lines = ["| method | tokens | read in | estimate | | a token | estimate | |", "| --- |" + " ---: |" * 7]
    for row in rows:
        cells = [f"`{row['method']}`", f"{row['tokens']:,}"]
        cells += [f"{row[f'prefill_{kind}']:.2f} s" for kind in ("seconds", "estimate")]
        cells.append(f"{row['prefill_error']:+.0%}")
        cells += [f"{1e3 * row[f'token_{kind}']:.1f} ms" for kind in ("seconds", "estimate")]
        cells.append(f"{row['token_error']:+.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--windows", type=int, nargs="+", default=[8, 16, 32, 64], help="lengths in windows")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the doctor and of the measurement")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the doctor's own run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console, measured_now = Console(width=120), []
    about = {
        "machine": machine(args.threads),
        "seconds": args.seconds,
        "rounds": args.rounds,
        "prefill_chunk": PREFILL_CHUNK,
    }
    for method in args.methods:
        measured_now += compared(method, args.windows, args.rounds, args.threads, args.seconds)
        if not args.no_save:
            keep([{**row, **about} for row in measured_now])
    console.print("\n".join(table(measured_now)), highlight=False, soft_wrap=True)
    for kind in ("prefill", "token"):
        missed = [row for row in measured_now if abs(row[f"{kind}_error"]) > BAR]
        console.print(f"{kind}: {len(measured_now) - len(missed)} of {len(measured_now)} within the bar of {BAR:.0%}")
        for row in missed:
            said = f"{row['method']} at {row['tokens']:,} tokens, {row[f'{kind}_error']:+.0%} (bar {BAR:.0%})"
            console.print(f"MISSED: {kind}: {said}", highlight=False, soft_wrap=True)
    return 0 if all(abs(row[f"{kind}_error"]) <= BAR for row in measured_now for kind in ("prefill", "token")) else 1


def keep(rows: list[dict[str, object]]) -> None:
    """Put the rows of some methods in the place of theirs in the results, and the table into the documentation."""
    new = {row["method"] for row in rows}
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    every = [row for row in before if row["method"] not in new] + rows
    every.sort(key=lambda row: METHODS.index(row["method"]) if row["method"] in METHODS else len(METHODS))
    within = {kind: sum(abs(row[f"{kind}_error"]) <= BAR for row in every) for kind in ("prefill", "token")}
    files.write(RESULTS, json.dumps({"bar": BAR, "within": within, "rows": every}, indent=1) + "\n")
    files.write(DOCUMENT, between(DOCUMENT.read_text(encoding="utf-8"), MARKS, table(every)))


if __name__ == "__main__":
    sys.exit(main())
