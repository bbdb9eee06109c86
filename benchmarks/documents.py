"""Documents against their bars: how soon they answer, in how much memory, from how many processes, and after what harm.

Each part runs alone, in processes of its own, and puts its figures into results/documents.json; without a part all run.

    python benchmarks/documents.py open          # open and first token against reading again, page cache cold and warm
    python benchmarks/documents.py limit         # 3 GiB of keys and values asked under RLIMIT_DATA of 1.5 GB
    python benchmarks/documents.py processes     # 8 processes ask one document of 1 GiB
    python benchmarks/documents.py killed        # SIGKILL at 100 random moments of read, append and save
    python benchmarks/documents.py spoiled       # 200 spoiled documents
    python benchmarks/documents.py --bars        # every bar beside its figure, from the results
    python benchmarks/documents.py --docs        # the table of docs/documents.md, from the results

Linux only.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from common import between, machine
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.cli import main as command_line
from longspan.documents import fingerprint
from longspan.errors import LongspanError
from longspan.machine.usage import bytes_read
from longspan.methods.parse import parse_method

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "documents.json"
MARKS = "<!-- documents -->", "<!-- /documents -->"
ASK = "What is the pass key? The pass key is"
METHOD = "longheads:score=bounds"
FEW = f"{METHOD},chunk_length=64,num_chunks=4"  # of the large model, whose keys and values are what counts
LAYERS, KV_HEADS, HEAD, WINDOW = 8, 32, 128, 256  # 256 KiB of keys and values a token in fp32
LIMIT = 1_500_000_000
TIMES = 3
PARTS = ("open", "limit", "processes", "killed", "spoiled")


@dataclass(frozen=True)
class Bar:
    """A figure beside its bar."""

    what: str
    figure: str
    bar: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.what}: {self.figure} (bar: {self.bar})"


def text_of(tokens: int, tokenizer) -> str:
    """Prose of about so many tokens, at least."""
    prose = heldout_text()
    each = len(tokenizer(prose[:50_000])["input_ids"]) / 50_000
    wanted = int(tokens / each * 1.02)
    return (prose * (wanted // len(prose) + 1))[:wanted]


def large() -> LlamaForCausalLM:
    """A random model, small but for its keys and values."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer_of()), hidden_size=128, intermediate_size=128, num_hidden_layers=LAYERS,
        num_attention_heads=KV_HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD, max_position_embeddings=WINDOW,
        initializer_range=0.1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokenizer_of():
    """The bundled tokenizer."""
    return load_bundled()[1]


def child(*words: object) -> dict:
    """What a child of this script says of itself."""
    ran = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if ran.returncode or not lines:
        raise SystemExit(f"{' '.join(map(str, words))}: {(ran.stderr.strip().splitlines() or ['nothing'])[-1]}")
    return json.loads(lines[-1])


def read_child(kind: str, tokens: int, path: str, limit: int) -> dict:
    """Read a text of so many tokens, perhaps under a limit on data."""
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model, tokenizer = load_bundled()
    model = large() if kind == "large" else model
    text = text_of(tokens, tokenizer)
    began = time.perf_counter()
    method = FEW if kind == "large" else METHOD
    longspan.extend(model, parse_method(method))
    prefill_chunk = 512 if kind == "large" else 4096  # what is new in a prefill chunk is in memory
    document = longspan.read(model, tokenizer, text, layout="plain", prefill_chunk=prefill_chunk, out=path)
    return {"tokens": document.tokens, "seconds": time.perf_counter() - began, "bytes": size_of(path)}


def ask_child(kind: str, path: str, limit: int, cold: int) -> dict:
    """Open a document and ask it once; the small model on one thread, as threads that wait count as the process's."""
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model, tokenizer = load_bundled()
    if kind == "large":
        model = large()
    else:
        torch.set_num_threads(1)
    with torch.inference_mode():
        model(torch.arange(64)[None])  # what torch and transformers make at their first forward is not the document's
    longspan.extend(model, parse_method(FEW if kind == "large" else METHOD))
    with torch.inference_mode():
        model.generate(torch.arange(3, 67)[None], max_new_tokens=2, do_sample=False, pad_token_id=0)
    if cold:
        forget(path)
    before = bytes_read()
    began, cpu = time.perf_counter(), time.process_time()
    document = longspan.Document.open(path, model, tokenizer)
    opened, cpu = time.perf_counter() - began, time.process_time() - cpu
    at_opening = None if before is None else bytes_read() - before
    answer = document.ask(ASK, 8)
    made = {"open": opened, "open_cpu": cpu, "first": answer.first_token_seconds, "opening_read": at_opening}
    made |= {"tokens": answer.tokens, "read": answer.bytes_read, "anonymous": answer.peak_anonymous}
    if limit:  # that the limit bites: a copy in memory of what is mapped
        try:
            copy.deepcopy(document.cache())
            made["copied"] = True
        except (RuntimeError, MemoryError):
            made["copied"] = False
    return made


def wait_child(path: str, number: str, folder: str) -> dict:
    """Ask, look at every byte, wait for the others, and say which memory is whose."""
    model, tokenizer = large(), tokenizer_of()
    document = longspan.Document.open(path, model, tokenizer)
    document.ask(ASK, 8)
    cache = document.cache()
    for store in cache.stores:
        for held in (*store.keys, store.values):
            float(held.sum())
    Path(folder, f"ready-{number}").touch()
    while len(list(Path(folder).glob("ready-*"))) < 8:
        time.sleep(0.05)
    mapped = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in mapped and inside:
            mapped[key] += int(rest.split()[0]) << 10
        elif " " in key or "-" in key.split(" ")[0]:
            inside = line.endswith(".bin") and "data-" in line
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    whole = {w[0][:-1]: int(w[1]) << 10 for w in (x.split() for x in rollup[1:]) if len(w) == 3}
    Path(folder, f"seen-{number}").touch()
    while len(list(Path(folder).glob("seen-*"))) < 8:
        time.sleep(0.05)
    private = whole["Private_Clean"] + whole["Private_Dirty"]
    return {"mapped": mapped, "private": private, "anonymous": whole["Anonymous"]}


def forget(path: str) -> None:
    """Let the system forget the pages of a document's files."""
    for file in Path(path).iterdir():
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


def size_of(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).iterdir())


def opening(folder: Path, tokens: int) -> dict:
    found: dict[str, dict] = {}
    for length in (8192, tokens):
        path = folder / f"{length}.longspan"
        found[str(length)] = {"read": child("_read", "bundled", length, path, 0)}
        for name, cold in (("cold", 1), ("warm", 0)):
            runs = [child("_ask", "bundled", path, 0, cold) for _ in range(TIMES)]
            found[str(length)][name] = {
                key: statistics.median(r[key] for r in runs) for key in ("open", "open_cpu", "first", "read")
            }
    long, short = found[str(tokens)], found["8192"]
    parts = {name: long["read"]["seconds"] / (long[name]["open"] + long[name]["first"]) for name in ("cold", "warm")}
    grows = {name: long[name]["open_cpu"] / short[name]["open_cpu"] for name in ("cold", "warm")}
    return {**found, "sooner": parts, "grows": grows}


def limited(folder: Path, tokens: int) -> dict:
    path = folder / "large.longspan"
    read = child("_read", "large", tokens, path, LIMIT)
    under, free = child("_ask", "large", path, LIMIT, 1), child("_ask", "large", path, 0, 0)
    return {"read": read, "under": under, "free": free, "limit": LIMIT}


def processes(folder: Path, tokens: int) -> dict:
    path, flags = folder / "shared.longspan", folder / "flags"
    flags.mkdir()
    read = child("_read", "large", tokens, path, 0)
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "_wait", str(path), str(n), str(flags)], stdout=subprocess.PIPE, text=True
        )
        for n in range(8)
    ]
    found = [json.loads(one.communicate()[0].splitlines()[-1]) for one in running]
    pss, largest = sum(one["mapped"]["Pss"] for one in found), max(one["mapped"]["Rss"] for one in found)
    private = max(one["private"] for one in found)
    return {"read": read, "each": found, "pss": pss, "mapped": largest, "private": private}


def harmed(folder: Path, kind: str, count: int) -> dict:
    sys.path.insert(0, str(ROOT / "tests"))
    torch.set_num_threads(1)
    text = heldout_text()[:12_000]
    tokenizer = tokenizer_of()
    fingerprint.cache_folder = lambda: folder / "cache"
    if kind == "killed":
        from support.killed_documents import KINDS, Killing

        killing = Killing(lambda: load_bundled()[0], tokenizer, text, folder)
        left = [f"{KINDS[n % 3]}: {killing.one(KINDS[n % 3], n)}" for n in range(count)]
        return {"kills": count, "left": {name: left.count(name) for name in sorted(set(left))}}
    from support.spoiled_documents import spoilers

    saved, model = folder / "saved.longspan", load_bundled()[0]
    longspan.read(model, tokenizer, text, method=METHOD, out=saved, prefill_chunk=1024)
    longspan.restore(model)
    opened, long = [], []
    for seed, (name, call) in enumerate(spoilers(count)):
        place = folder / str(seed)
        shutil.copytree(saved, place)
        call(place, random.Random(seed))
        try:
            longspan.Document.open(place, model, tokenizer, verify=True)
            opened.append(name)
            longspan.restore(model)
        except LongspanError:
            pass
        lines = said_to(place)
        if len(lines) != 1 or not lines[0].startswith("longspan: error: "):
            long.append(name)
        shutil.rmtree(place)
    return {"spoiled": count, "refused": count - len(opened), "opened": opened, "long": long}


def said_to(place: Path) -> list[str]:
    """What ``longspan ask`` says of a document on stderr, besides what transformers says."""
    err = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err), suppress(SystemExit):
        command_line(["ask", str(place), "Who?", "--verify", "--max-new-tokens", "1"])
    return [line for line in err.getvalue().splitlines() if not line.startswith(("Loading", "[transformers]"))]


def bars(part: str, found: dict) -> list[Bar]:
    """The figures of a part beside their bars."""
    if part == "open":
        made = [
            Bar(f"open and first token, {name}", f"{x:.0f} times sooner than reading", "at least 50 times", x >= 50)
            for name, x in found["sooner"].items()
        ]
        return made + [
            Bar(f"opening as the text grows, {name}", f"{x:.2f} times", "at most 1.5 times", x <= 1.5)
            for name, x in found["grows"].items()
        ]
    if part == "limit":
        same, size = found["under"]["tokens"] == found["free"]["tokens"], found["read"]["bytes"]
        copied = found["under"]["copied"]
        return [
            Bar("tokens under the limit", "the same" if same else "others", "the same as without", same),
            Bar("keys and values", f"{size / 1e9:.2f} GB", "at least 3 GB", size >= 3e9),
            Bar("a copy of them in memory", "made" if copied else "refused", "refused by the limit", not copied),
        ]
    if part == "processes":
        copies, private, size = found["pss"] / found["mapped"], found["private"], found["read"]["bytes"]
        return [
            Bar("copies in the page cache, 8 processes", f"{copies:.2f}", "at most 1.02", copies <= 1.02),
            Bar("private memory of a process", f"{private / 2**20:.0f} MiB", "at most half of it", 2 * private <= size),
        ]
    if part == "killed":  # another outcome than these ends the run
        return [Bar("SIGKILL at random moments", f"{found['kills']}", "100, none with another document", True)]
    refused, count, long = found["refused"], found["spoiled"], found.get("long", [])
    return [
        Bar("spoiled documents refused", f"{refused} of {count}", f"{count} of {count}", refused == count),
        Bar("spoiled documents with other than one line", f"{len(long)}", "0", not long),
    ]


def table(held: dict) -> list[str]:
    """The rows of docs/documents.md."""
    rows, gib = ["| | bar | |", "| --- | --- | --- |"], 2**30
    if "open" in held:
        found = held["open"]
        length = max(int(key) for key in found if key.isdigit())
        long = found[str(length)]
        cells = [
            f"{name}: {long[name]['open'] * 1000:.0f} ms and {long[name]['first'] * 1000:.0f} ms, "
            f"{found['sooner'][name]:.0f} times sooner"
            for name in ("cold", "warm")
        ]
        what = f"open and first token, bundled model, {long['read']['tokens']:,} tokens, "
        what += f"read in {long['read']['seconds']:.0f} s"
        rows.append(f"| {what} | at most 1/50 of reading | {'; '.join(cells)} |")
        each = ", ".join(f"{name} {found['grows'][name]:.2f} times" for name in ("cold", "warm"))
        rows.append(f"| opening, {length:,} tokens against 8,192 | at most 1.5 times | {each} |")
    if "limit" in held:
        found = held["limit"]
        under = found["under"]
        said = f"the same tokens as without it; {under['anonymous'] / 2**20:.0f} MiB of anonymous memory at most, "
        said += f"{under['read'] / 2**20:.1f} MiB read from disk for the answer"
        what = f"a document of {found['read']['bytes'] / gib:.2f} GiB, read and asked under RLIMIT_DATA of 1.5 GB"
        rows.append(f"| {what} | the same tokens | {said} |")
    if "processes" in held:
        found = held["processes"]
        said = f"at most {found['private'] / 2**20:.0f} MiB private each; {found['pss'] / found['mapped']:.2f} copies"
        rows.append(
            f"| 8 processes, one document of {found['mapped'] / gib:.2f} GiB | one copy in the page cache | {said} |"
        )
    if "killed" in held:
        left = ", ".join(f"{name} {count}" for name, count in held["killed"]["left"].items())
        rows.append(f"| SIGKILL at {held['killed']['kills']} random moments | before, after or not there | {left} |")
    if "spoiled" in held:
        found = held["spoiled"]
        said = f"{found['refused']} refused, {len(found.get('long', []))} in other than one line"
        rows.append(f"| {found['spoiled']} spoiled documents | all refused, in one line each | {said} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--bars", action="store_true", help="print every bar beside its figure in the results")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/documents.md from the results")
    parser.add_argument("--no-save", action="store_true", help="leave the results file as it is")
    parser.add_argument("--small", action="store_true", help="a short run, of other lengths than the bars'")
    parser.add_argument("--dir", help="where the documents lie; the system's folder for temporary files unless given")
    args = parser.parse_args()
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    beside: list[Bar] = []
    if args.bars:
        for part in PARTS:
            own = bars(part, held[part]) if part in held else [Bar(part, "not measured", "to be measured", False)]
            beside += own
            print(*own, sep="\n")
    for part in [] if args.docs or args.bars else [args.part] if args.part else PARTS:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            place = Path(folder)
            if part in ("killed", "spoiled"):
                made = harmed(place, part, (10 if args.small else 100) * (1 if part == "killed" else 2))
            else:
                sizes = {"open": (131_072, 16_384), "limit": (12_288, 1_024), "processes": (4_096, 1_024)}
                run = {"open": opening, "limit": limited, "processes": processes}[part]
                made = run(place, sizes[part][args.small])
        held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # another part may have ended meanwhile
        held[part] = {**made, **machine(torch.get_num_threads())}
        print(part, json.dumps(made))
        beside += bars(part, made)
        print(*bars(part, made), sep="\n", flush=True)
        if not args.no_save:
            RESULTS.write_text(json.dumps(held, indent=1) + "\n")
    if args.docs:
        page = ROOT / "docs" / "documents.md"
        page.write_text(between(page.read_text(), MARKS, table(held)))
    return 0 if all(bar.met for bar in beside) else 1


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] and words[0].startswith("_"):
        run = {"_read": read_child, "_ask": ask_child, "_wait": wait_child}[words[0]]
        print(json.dumps(run(*(int(word) if word.isdigit() and words[0] != "_wait" else word for word in words[1:]))))
        sys.exit(0)
    assert FOLDER.is_dir()
    sys.exit(main())
