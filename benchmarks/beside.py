"""longspan beside llama.cpp and plain transformers on one GGUF file: reading, answering, asking again, and memory.

    python benchmarks/beside.py --texts NOVELS --llama-python PYTHON --rounds 0-1 --lengths 4096 16384
    python benchmarks/beside.py                          # what has been measured

llama.cpp (llama-cpp-python, in any environment) reads with flash attention, and under YaRN what is longer than the
window; transformers (fp32, sdpa) does so, too. llama.cpp's fastest products are not for each form of weights, so it is
also measured on the file in Q4_0 (--llama-forms). Each contestant has a process of its own, and they take turns within
a round; a ratio is the median over rounds of the ratio to llama.cpp in the same round, on the same file. NOVELS is a
folder of .txt files.

Every measure is on disk as soon as it is there, and the same command goes on. What has changed since a round, or was no
contestant then, goes into a round with a new number, where llama.cpp takes its turn again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import groupby, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import cpu_model
from longspan.files import write
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.loading.fetch import sha256_of
from longspan.loading.header import Header
from longspan.loading.known import KNOWN
from longspan.loading.models import load_tokenizer
from longspan.loading.names import path_of

RESULTS = Path(__file__).parent / "results" / "beside.json"
MARKS = "<!-- beside -->", "<!-- /beside -->"
CONTESTANT = Path(__file__).with_name("beside_contestant.py")
METHODS = ("esa:share=group", "longheads:chunk_length=16,score=bounds", "dca")
QUESTIONS = "\n\nWho is the hero of the story?\nAnswer:", " Where do most of these people live?\nAnswer:"
TOKENS, ROOM = 64, 128  # of an answer, and for a question with its answer
COLUMNS = {
    "read": "read, ms a token",
    "next": "next, ms a token",
    "first": "first, s",
    "again": "again, s",
    "whole": "whole, s",
    "memory": "GiB",
}
BASE = "llama.cpp"


def contestants(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    """What each job says of its contestant, by the name in the results."""
    found = {BASE: {"name": BASE}} | {f"{BASE} {form}": {"name": BASE, "form": form} for form in args.llama_forms}
    found["transformers"] = {"name": "transformers"}
    for method, weights in product(args.methods, args.weights):
        found[f"longspan {method} {weights}"] = {"name": "longspan", "method": method, "weights": weights}
    return {key: job for key, job in found.items() if job["name"] in args.contestants}


def measure(args: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    """Measure what is missing, the shortest texts first."""
    file = Path(path_of(args.model)).resolve()
    about = {"file": file.name, "sha256": sha256_of(file), "cpu": cpu_model()}
    said = Header.read(file).metadata
    tokenizer = load_tokenizer(args.model)
    novels = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(args.texts.glob("*.txt")))
    text = novels[: 8 * max(args.lengths)]  # more than enough characters
    ids, *questions = (tokenizer(one, add_special_tokens=False).input_ids for one in (text, *QUESTIONS))
    shared = {
        "file": str(file), "window": said[f"{said['general.architecture']}.context_length"], "threads": args.threads,
        "questions": questions, "tokens": TOKENS, "cache": CACHE_ARGUMENT,
    }  # fmt: skip
    runs, deadline = contestants(args), time.time() + 60 * args.minutes
    for length, number in product(args.lengths, range(args.rounds[0], args.rounds[1] + 1)):
        if len(ids) < length:
            sys.exit(f"beside: error: the texts have {len(ids):,} tokens, and {length:,} are asked for")
        turn = number % len(runs)
        for name in [*runs][turn:] + [*runs][:turn]:
            key = f"{name_of(args.model)}|{args.threads}|{length}|{name}|{number}"
            if key in found:
                continue
            if time.time() > deadline:
                return
            job = {**shared, **runs[name], "text": ids[: length - ROOM], "length": length}
            python = args.llama_python if job["name"] == BASE else sys.executable
            with TemporaryDirectory(dir=args.scratch) as folder:
                if "form" in job:
                    into = os.path.join(folder, "requantised.gguf")
                    run({**job, "into": into}, python)
                    job["file"] = into
                one = run(job, python)
            if one is None:
                continue
            found[key] = {**one, **about, "date": time.strftime("%Y-%m-%d")}
            lines = (f"{json.dumps(key)}: {json.dumps(found[key], sort_keys=True)}" for key in sorted(found))
            write(RESULTS, "{\n" + ",\n".join(lines) + "\n}\n")
            print(time.strftime("%H:%M:%S"), key, {column: one[column] for column in COLUMNS}, flush=True)


def run(job: dict[str, Any], python: str) -> dict[str, Any] | None:
    """What a contestant measures in a process of its own; None if it fails, which is printed."""
    env = {**os.environ, "OMP_NUM_THREADS": str(job["threads"])}
    ran = subprocess.run([python, CONTESTANT], input=json.dumps(job), capture_output=True, text=True, env=env)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or [f"it ended with {ran.returncode}"])[-1]
        print(f"beside: {job['name']} at {job['length']:,} tokens: {last}", file=sys.stderr)
        return None
    measures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return measures


def name_of(model: str) -> str:
    return KNOWN[model].title if model in KNOWN else Path(model).stem


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """A table for each model, number of threads and length: medians over rounds, in brackets ratios to llama.cpp."""
    rounds: dict[tuple[str, int, int, str], dict[str, dict[str, Any]]] = {}
    for key, one in found.items():
        model, threads, length, name, number = key.split("|")
        rounds.setdefault((model, int(threads), int(length), name), {})[number] = one
    lines = [""]
    kinds = BASE, "transformers", "longspan"
    order = sorted(rounds, key=lambda own: (*own[:3], kinds.index(own[3].split()[0]), own[3]))
    for (model, threads, length), names in groupby(order, lambda own: own[:3]):
        lines += [f"{model}, {length:,} tokens, {threads} thread{'s' if threads > 1 else ''}:", ""]
        lines += [f"| | {' | '.join(COLUMNS.values())} |", f"| --- |{' ---: |' * len(COLUMNS)}"]
        base = rounds.get((model, threads, length, BASE), {})
        for own in names:
            kind, *how = own[3].split()
            title = f"{kind} `{how[0]}`, {how[1]}" if len(how) > 1 else ", ".join([kind, *how])
            lines.append(f"| {title} | {' | '.join(cell(rounds[own], base, column) for column in COLUMNS)} |")
        lines.append("")
    return lines


def cell(own: dict[str, dict[str, Any]], base: dict[str, dict[str, Any]], column: str) -> str:
    figure = f"{median(one[column] for one in own.values()):.3g}"
    ratios = [one[column] / base[number][column] for number, one in own.items() if number in base]
    return figure if own is base or not ratios else f"{figure} ({median(ratios):.2f})"


def results() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="folder of novels, each a .txt file; without it nothing is measured")
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or a name that `longspan fetch` knows")
    parser.add_argument("--llama-python", default=sys.executable, help="the python that has llama-cpp-python")
    parser.add_argument("--llama-forms", nargs="*", default=("Q4_0",), help="of the weights, besides the file's own")
    parser.add_argument("--scratch", type=Path, help="folder for files in those forms; default: the system's")
    parser.add_argument("--contestants", nargs="+", default=(BASE, "transformers", "longspan"))
    parser.add_argument("--methods", nargs="+", default=METHODS, help="of longspan")
    parser.add_argument(
        "--weights", nargs="+", default=("float32",), help="of longspan: float32, or FORM[,DTYPE] of `load`"
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=(4096, 16_384, 32_768, 65_536), help="in tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=span, default=(0, 2), help="their numbers, FIRST-LAST; default: 0-2")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after so long")
    return parser.parse_args()


def span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def main() -> None:
    args = parse()
    found = results()
    if args.texts is not None:
        measure(args, found)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
