"""The server against its bars, on the bundled model: first tokens under load, what is not read again, and its own time.

    python benchmarks/serve.py          # all parts, into results/serve.json, and the table of docs/serve.md
    python benchmarks/serve.py load     # some of own, again, meanwhile, load
    python benchmarks/serve.py --docs   # the table alone, from the results

In `own`, `generate` and `transformers serve` (the stock model, a process of its own) take turns with the server. A
part is in the results, and its bars are printed, as soon as it is done.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import torch

import longspan
from common import between, machine
from longspan.bundled import heldout_text, load_bundled
from longspan.machine import usage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from serve_own import PROMPT, TOKENS, own_time, timed_forwards  # noqa: E402
from serve_together import bars as together_bars  # noqa: E402
from support.serving import QUESTION, Served, chat, said, wait_for  # noqa: E402

RESULTS, PAGE = Path(__file__).parent / "results" / "serve.json", ROOT / "docs" / "serve.md"
MARKS = "<!-- serve -->", "<!-- /serve -->"
CLIENTS, REQUESTS, LOADS, PROMPTS, TIMES = 32, 300, 3, 20, 7
SLACK_MIB = 16  # of memory after the load, for what the allocator keeps
WINDOW, PREFILL_CHUNK = 512, 1024


def first_token(client: httpx.Client, body: dict) -> tuple[float, float]:
    """Seconds until the first text of a stream, and to its end."""
    began, first = time.perf_counter(), None
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if first is None and line.startswith("data: {") and _has_text(json.loads(line[6:])):
                first = time.perf_counter() - began
    assert first is not None
    return first, time.perf_counter() - began


def _has_text(chunk: dict) -> bool:
    choice = chunk["choices"][0] if chunk["choices"] else {}
    return bool(choice.get("delta", {}).get("content"))


def load(served: Served) -> dict:
    """Three hundred requests by thirty-two clients, three times; a tenth hang up half way, the others are compared."""
    prompts = [f"{number}. {PROMPT}" for number in range(PROMPTS)]

    def ask(number: int) -> tuple[float | None, str | None]:
        body = chat(prompts[number % PROMPTS], max_tokens=TOKENS, stream=True)
        began, first, parts = time.perf_counter(), None, []
        with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {") and _has_text(chunk := json.loads(line[6:])):
                    first = first or time.perf_counter() - began
                    parts.append(chunk["choices"][0]["delta"]["content"])
                    if number % 10 == 9 and len(parts) == TOKENS // 2:
                        return None, None
        return first, "".join(parts)

    expected = [said(served.ask(prompt, max_tokens=TOKENS)) for prompt in prompts]
    memory: list[int] = []
    answers: list[tuple[float | None, str | None]] = []
    for _ in range(LOADS):  # the first time, as many requests at once make threads and the allocator's heaps for them
        wait_for(served.idle)
        memory.append(_memory())
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers += pool.map(ask, range(REQUESTS))
    wait_for(served.idle)
    memory.append(_memory())
    first, *more = (round((b - a) / 2**20, 1) for a, b in pairwise(memory))
    seconds = sorted(first for first, _ in answers if first is not None)
    wrong = sum(text is not None and text != expected[n % PROMPTS] for n, (_, text) in enumerate(answers))
    return {
        "loads": LOADS, "requests": len(answers), "clients": CLIENTS,
        "hung up": sum(text is None for _, text in answers), "answered": len(seconds), "wrong": wrong,
        "first_mib": first, "memory_mib": max(more),
        "p50": statistics.median(seconds), "p99": seconds[int(0.99 * len(seconds))],
    }  # fmt: skip


def _memory() -> int:
    """Bytes of this process that are no file's."""
    gc.collect()
    return usage.anonymous() or 0


def long_text(tokenizer, windows: int) -> str:
    """Prose of so many windows."""
    prose = heldout_text()
    each = len(tokenizer(prose[:50_000])["input_ids"]) / 50_000
    return prose[: int(windows * WINDOW / each)]


def again(served: Served, tokenizer, windows: int) -> dict:
    """The first question about a text, and later ones."""
    text = long_text(tokenizer, windows)
    first, _ = first_token(served.http, chat(f"{text}\n{QUESTION}", max_tokens=2))
    id = served.add(text)
    later = [first_token(served.http, chat(f"{n}. {QUESTION}", document=id, max_tokens=2))[0] for n in range(TIMES)]
    return {"windows": windows, "first": first, "second": statistics.median(later)}


def meanwhile(served: Served, model, tokenizer, windows: int) -> dict:
    """First tokens of short questions while a text is read, beside the time that the model takes for a chunk."""
    served.ask("warm", max_tokens=1)
    with timed_forwards(model) as forwards:
        id, prefill_chunks, seconds = served.add(long_text(tokenizer, windows), wait=False), [], []
        wait_for(lambda: served.document(id)["status"] == "reading")
        while served.document(id)["status"] == "reading":
            before, body = served.host.engine.prefill_chunks, chat(f"{len(prefill_chunks)}. {QUESTION}", max_tokens=1)
            seconds.append(first_token(served.http, body)[0])
            prefill_chunks.append(served.host.engine.prefill_chunks - before)
        wait_for(lambda: served.document(id)["status"] == "ready")
    return {
        "windows": windows, "questions": len(prefill_chunks), "most": max(prefill_chunks),
        "prefill_chunk": statistics.median(took for tokens, took in forwards if tokens == PREFILL_CHUNK),
        "first": statistics.median(seconds), "first_most": max(seconds),
    }  # fmt: skip


def bars(found: dict) -> Iterator[tuple[str, str, str, str, bool | None]]:
    """Of each part that was run: its name, what was measured, the bar, the figures, and whether they meet it."""
    if again := found.get("again"):
        ratio = again["first"] / again["second"]
        yield (
            "again", f"second question of a document of {again['windows']} windows",
            "first token at most 1/30 of the first question's",
            f"1/{ratio:.0f}: {again['second'] * 1000:.0f} ms against {again['first']:.1f} s", ratio >= 30,
        )  # fmt: skip
    if during := found.get("meanwhile"):
        times = during["first_most"] / during["prefill_chunk"]
        yield (
            "meanwhile", f"short question while {during['windows']} windows are read",
            "first token within the time of 3 prefill chunks",
            f"at most {times:.2f}: {during['first_most'] * 1000:.0f} ms beside {during['prefill_chunk'] * 1000:.0f} "
            f"ms, median {during['first'] * 1000:.0f} ms, of {during['questions']} questions", times <= 3,
        )  # fmt: skip
    if load := found.get("load"):
        lost = load["requests"] - load["hung up"] - load["answered"]
        yield (
            "load", f"{load['requests'] // load['loads']} requests by {load['clients']} clients, a tenth of which hang "
            f"up half way; {load['loads']} times over",
            f"none lost, none wrong, memory back (less than {SLACK_MIB} MiB more)",
            f"{lost} lost, {load['wrong']} wrong, {load['first_mib']:+.1f} MiB the first time and then at most "
            f"{load['memory_mib']:+.1f} MiB; first token p50 {load['p50']:.2f} s, "
            f"p99 {load['p99']:.2f} s", not lost and not load["wrong"] and load["memory_mib"] < SLACK_MIB,
        )  # fmt: skip
    yield from together_bars(found.get("together", ()))
    if own := found.get("own"):
        yield (
            "own", f"the server's own time of a request of {own['tokens']} tokens, beyond `generate` of the same model",
            "under 5% of a request",
            f"{own['share']:.1%}: {own['request'] * 1000:.0f} ms beside {own['generate'] * 1000:.0f} ms",
            own["share"] < 0.05,
        )  # fmt: skip
        if "own" in own:
            yield (
                "own", "its own time without the client, from the call of its application to the last byte: JSON, the "
                "prompt's tokens, turns, caches and the answer's text; not counted is what `generate` does, too: "
                "preparing each forward, the forward, sampling", "under 5% of a request",
                f"{own['own']:.1%}: {own['own_seconds'] * 1000:.1f} ms of {own['inside'] * 1000:.0f} ms",
                own["own"] < 0.05,
            )  # fmt: skip
            both = f"{own['inside_outside_forwards']:.1%} beside {own['generate_outside_forwards']:.1%} of `generate`"
            yield "own", "its time outside of the model's forwards, without the client", "", both, None
        if "outside_forwards" in own:
            outside = f"{own['outside_forwards']:.1%}"
            yield "own", "its time outside of the model's forwards, the client's included", "", outside, None
        if "transformers_serve" in own:
            said = f"{own['transformers_serve'] * 1000:.0f} ms"
        else:
            said = f"did not answer: {own['transformers_serve_failed']}"
        yield "own", "the same request to `transformers serve`, the stock model", "", said, None
        if "stock_generate" in own:
            stock = f"{own['stock_generate'] * 1000:.0f} ms"
            yield "own", "`generate` of the stock model", "", stock, None


def table(found: dict) -> list[str]:
    """The rows of docs/serve.md."""
    words = {True: "met", False: "missed", None: ""}
    rows = [(what, bar, figures, words[met]) for _, what, bar, figures, met in bars(found)]
    return ["| | bar | | |", "| --- | --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--windows", type=int, default=64)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not options.docs:
        measure(options.parts or list(PARTS), options.windows)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(between(text, MARKS, table(json.loads(RESULTS.read_text()))), encoding="utf-8")


PARTS = ("own", "again", "meanwhile", "load")


def measure(parts: list[str], windows: int) -> None:
    """Run parts, each of which is in the results as soon as it is done."""
    model, tokenizer = load_bundled()
    longspan.extend(model, "longheads:score=bounds")
    with tempfile.TemporaryDirectory() as folder:
        served = Served(model, tokenizer, Path(folder), prefill_chunk=PREFILL_CHUNK, memory=0)
        run = {
            "own": lambda: own_time(served, model, tokenizer),
            "again": lambda: again(served, tokenizer, windows),
            "meanwhile": lambda: meanwhile(served, model, tokenizer, windows),
            "load": lambda: load(served),
        }
        try:
            for part in parts:
                made = {**run[part](), **machine(torch.get_num_threads())}
                held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                RESULTS.write_text(json.dumps({**held, part: made}, indent=1) + "\n")
                for _, what, bar, figures, met in bars({part: made}):
                    print(
                        f"{what}: {figures}", *([f"[{bar}: {'met' if met else 'MISSED'}]"] if bar else []), flush=True
                    )
        finally:
            served.close()


if __name__ == "__main__":
    main()
