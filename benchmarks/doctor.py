"""The doctor's estimates beside the real times of reading and of a token, at lengths that it did not measure.

    python benchmarks/doctor.py --model smollm2 --model bundled      # measures what is missing, then compares

The real times: a text of words, read in prefill chunks as the doctor reads, and the median of tokens after it, on one
thread by the process's own time. Each is in results/doctor/ as soon as it is there: the run may be killed at any time,
and the same command goes on. ``--real`` and ``--doctor`` measure one side alone. ``blocks.py`` puts the table into
docs/doctor.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

import longspan
from common import machine
from longspan.doctor.estimate import estimated
from longspan.doctor.fit import PREFILL_CHUNK, ReadingPlan, TimeRange, plan
from longspan.doctor.measuring import NoEstimateError, Point, Run
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.loading.models import load
from longspan.selection import Everything

PAGE, MARKS = Path(__file__).parents[1] / "docs" / "doctor.md", ("<!-- doctor -->", "<!-- /doctor -->")
OUT = Path(__file__).parent / "results" / "doctor"
TEXT = Path(longspan.__file__).parent / "bundled" / "heldout.txt"
LENGTHS, TOKENS = (8192, 16_384, 32_768), 16
METHODS = ("dca", "esa:share=group", "longheads:chunk_length=16,score=bounds")


def saved(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, model: str, method: str, **more: Any) -> None:
    """Add to a file, which another run may have added to meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {**saved(path), "model": model, "method": method, "machine": machine(1), **more}
    path.write_text(json.dumps(found) + "\n")


@torch.inference_mode()
def real(model: Any, name: str, ids: torch.Tensor, method: str, path: Path) -> None:
    """Read ``ids`` ``[1, N]`` once; seconds of reading and of a token at each of ``LENGTHS`` go to a file."""
    if str(max(LENGTHS)) in saved(path).get("real", {}):
        return
    times, spent = {}, 0.0
    with longspan.extended(model, method, length=max(LENGTHS)):
        model(input_ids=ids[:, :16], logits_to_keep=1, use_cache=True, **{CACHE_ARGUMENT: longspan.new_cache(model)})
        cache = longspan.new_cache(model)
        for start in range(0, max(LENGTHS), PREFILL_CHUNK):
            stop = start + PREFILL_CHUNK
            spent += timed(model, ids[:, start:stop], cache)
            if stop in LENGTHS:
                waits = [timed(model, ids[:, n : n + 1], cache) for n in range(TOKENS)]
                cache.crop(-TOKENS)
                times[str(stop)] = {"read": round(spent, 3), "token": round(median(waits), 6)}
                save(path, name, method, real=times)
                print(time.strftime("%H:%M:%S"), path.stem, stop, times[str(stop)], flush=True)


def doctor(model: Any, name: str, method: str, path: Path) -> None:
    """Ask the doctor for each of ``LENGTHS``; its estimates go to a file.

    Lengths for which it reads and fits the same tokens share one reading, that of the longest.
    """
    report = longspan.inspect(model, method)
    dense = isinstance(report.method.selection(report.window), Everything)
    plans = {n: plan(n, report.window, dense=dense) for n in sorted(LENGTHS, reverse=True)}
    for length, one in plans.items():
        done = saved(path).get("doctor", {})
        if str(length) in done:
            continue
        twins = [done[str(n)]["run"] for n, x in plans.items() if str(n) in done and parts(x) == parts(one)]
        if twins and one.stop < length:
            said = {**from_run(twins[0], one), "run": twins[0]}
        else:
            made = longspan.diagnose(model, length=length, method=method).to_dict()
            said = {key: made[key] for key in ("estimate", "no_estimate", "run")}
        save(path, name, method, doctor={**done, str(length): said})
        print(time.strftime("%H:%M:%S"), path.stem, length, said["estimate"] or said["no_estimate"], flush=True)


def parts(one: ReadingPlan) -> tuple[int, int]:
    return one.stop, one.fitted


def from_run(run: dict[str, Any], one: ReadingPlan) -> dict[str, Any]:
    """What the doctor says of another length from the same reading."""
    points = {key: tuple(Point(**point) for point in run[key]) for key in ("prefill_chunks", "tokens")}
    try:
        return {"estimate": asdict(estimated(Run(**{**run, **points}), one)), "no_estimate": None}
    except NoEstimateError as error:
        return {"estimate": None, "no_estimate": str(error)}


def table() -> list[str]:
    """The rows of docs/doctor.md: for each length the estimates, and the real times with what their middles err by."""
    rows = ["| model | method | tokens | reading: estimate | real | a token: estimate | real |", "|---|" + "---|" * 6]
    for path in sorted(OUT.glob("*.json")):
        found = saved(path)
        for length, real_times in sorted(found.get("real", {}).items(), key=lambda one: int(one[0])):
            said = found.get("doctor", {}).get(length)
            if said is None:
                continue
            cells = ["no estimate", f"{real_times['read']:.1f} s", "", f"{1000 * real_times['token']:.1f} ms"]
            if said["estimate"] is not None:
                read, token = said["estimate"]["prefill_seconds"], said["estimate"]["token_seconds"]
                cells[0] = f"{read['low']:.1f} to {read['high']:.1f} s"
                cells[1] += f" ({off(read, real_times['read']):+.0%})"
                cells[2] = f"{1000 * token['low']:.1f} to {1000 * token['high']:.1f} ms"
                cells[3] += f" ({off(token, real_times['token']):+.0%})"
            rows.append(f"| {found['model']} | `{found['method']}` | {int(length):,} | {' | '.join(cells)} |")
    return rows


def off(said: dict[str, float], real_time: float) -> float:
    """By how much the middle of an interval is more than a real time."""
    return TimeRange(**said).middle / real_time - 1


def timed(model: Any, ids: torch.Tensor, cache: Any) -> float:
    began = time.process_time()
    model(input_ids=ids, logits_to_keep=1, use_cache=True, **{CACHE_ARGUMENT: cache})
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="a name that longspan takes; may be repeated")
    parser.add_argument("--method", action="append", help="one of them; default: all three")
    parser.add_argument("--real", action="store_true", help="measure the real times alone")
    parser.add_argument("--doctor", action="store_true", help="ask the doctor alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.model:
        model, tokenizer = load(name, dtype="float32", device="cpu", quiet=True)
        ids = tokenizer(TEXT.read_text(encoding="utf-8"), return_tensors="pt", add_special_tokens=False).input_ids
        ids = ids.repeat(1, -(-max(LENGTHS) // ids.shape[1]))
        for method in args.method or METHODS:
            path = OUT / f"{name}-{method.partition(':')[0]}.json"
            if not args.doctor:
                real(model, name, ids, method, path)
            if not args.real:
                doctor(model, name, method, path)
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
