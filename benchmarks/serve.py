"""The server against its bars, on the bundled model: first tokens under load, what is not read again, and its own time.

    python benchmarks/serve.py          # all parts, into results/serve.json, and the table of docs/serve.md
    python benchmarks/serve.py load     # one of own, transformers, again, meanwhile, load
    python benchmarks/serve.py --docs   # the table alone, from the results

`transformers serve` answers the same requests in the same run, with the stock model.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import torch

import longspan
from common import between, machine
from longspan.bundled import FOLDER, heldout_text, load_bundled

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.serving import QUESTION, Served, chat, wait_for  # noqa: E402

RESULTS, PAGE = Path(__file__).parent / "results" / "serve.json", ROOT / "docs" / "serve.md"
MARKS = "<!-- serve -->", "<!-- /serve -->"
CLIENTS, REQUESTS, TOKENS, TIMES = 32, 300, 32, 7
WINDOW, PIECE = 512, 1024
PROMPT = heldout_text()[:800]


def first_token(client: httpx.Client, path: str, body: dict) -> tuple[float, float]:
    """Seconds until the first text of a stream, and to its end."""
    began, first = time.perf_counter(), None
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if first is None and line.startswith("data: {") and _has_text(json.loads(line[6:])):
                first = time.perf_counter() - began
    assert first is not None
    return first, time.perf_counter() - began


def _has_text(chunk: dict) -> bool:
    choice = chunk["choices"][0] if chunk["choices"] else {}
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def load(served: Served) -> dict:
    """Three hundred requests by thirty-two clients, a tenth of which hang up at their first token."""

    def ask(number: int) -> float | None:
        body = chat(f"{number}. {PROMPT}", max_tokens=TOKENS)
        if number % 10:
            return first_token(served.http, "/v1/chat/completions", body)[0]
        with served.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            next(response.iter_lines())
        return None

    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = sorted(found for found in pool.map(ask, range(REQUESTS)) if found is not None)
    wait_for(served.idle)
    return {
        "requests": REQUESTS, "clients": CLIENTS, "answered": len(seconds),
        "p50": statistics.median(seconds), "p99": seconds[int(0.99 * len(seconds))],
    }  # fmt: skip


def long_text(tokenizer, windows: int) -> str:
    """Prose of so many windows."""
    prose = heldout_text()
    each = len(tokenizer(prose[:50_000])["input_ids"]) / 50_000
    return prose[: int(windows * WINDOW / each)]


def again(served: Served, tokenizer, windows: int) -> dict:
    """The first question about a text, and later ones."""
    text = long_text(tokenizer, windows)
    first, _ = first_token(served.http, "/v1/chat/completions", chat(f"{text}\n{QUESTION}", max_tokens=2))
    id = served.add(text)
    later = [
        first_token(served.http, "/v1/chat/completions", chat(f"{n}. {QUESTION}", document=id, max_tokens=2))[0]
        for n in range(TIMES)
    ]
    return {"windows": windows, "first": first, "second": statistics.median(later)}


def meanwhile(served: Served, tokenizer, windows: int) -> dict:
    """Pieces that are read between a short question and its first token, while a text is read."""
    id, found = served.add(long_text(tokenizer, windows), wait=False), []
    wait_for(lambda: served.document(id)["status"] == "reading")
    while served.document(id)["status"] == "reading":
        before = served.host.engine.pieces
        served.ask(f"{len(found)}. {QUESTION}", max_tokens=1)
        found.append(served.host.engine.pieces - before)
    wait_for(lambda: served.document(id)["status"] == "ready")
    return {"windows": windows, "questions": len(found), "most": max(found)}


def own_time(served: Served, model, tokenizer) -> dict:
    """What a request takes beside what `generate` takes for its tokens, the two taking turns."""
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    path, body = "/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    alone, asked = [], []
    for _ in range(TIMES + 2):
        began = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, pad_token_id=0)
        alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        served.http.post(path, json=body).raise_for_status()
        asked.append(time.perf_counter() - began)
    pairs = sorted((b - a) / b for a, b in zip(alone[2:], asked[2:], strict=True))
    return {
        "generate": statistics.median(alone[2:]),
        "request": statistics.median(asked[2:]),
        "share": pairs[len(pairs) // 2],
    }


def transformers_serve() -> dict:
    """The same request to `transformers serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "transformers"),
        "serve",
        str(FOLDER),
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_for(lambda: process.poll() is not None or _up(client))
                body = {"model": str(FOLDER), "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
                seconds = []
                for _ in range(TIMES + 2):
                    began = time.perf_counter()
                    client.post("/v1/completions", json=body).raise_for_status()
                    seconds.append(time.perf_counter() - began)
            return {"request": statistics.median(seconds[2:])}
        except (httpx.HTTPError, AssertionError) as error:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            return {"failed": f"{type(error).__name__}: {error} {' '.join(last)}"[:300]}
        finally:
            process.terminate()
            process.wait()


def _up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def table(found: dict) -> list[str]:
    """The rows of docs/serve.md, of the parts that were run."""
    rows = []
    if load := found.get("load"):
        rows.append((
            f"{load['requests']} requests by {load['clients']} clients, a tenth of which hang up",
            "none lost",
            f"{load['answered']} answered; first token p50 {load['p50']:.2f} s, p99 {load['p99']:.2f} s",
        ))  # fmt: skip
    if again := found.get("again"):
        rows.append((
            f"second question of a document of {again['windows']} windows",
            "first token at most 1/30 of the first question's",
            f"1/{again['first'] / again['second']:.0f}: {again['second'] * 1000:.0f} ms against {again['first']:.1f} s",
        ))  # fmt: skip
    if during := found.get("meanwhile"):
        rows.append((
            f"short question while {during['windows']} windows are read",
            "within 3 pieces",
            f"at most {during['most']} of {during['questions']} questions",
        ))  # fmt: skip
    if own := found.get("own"):
        rows.append((
            f"the server's own time, {TOKENS} tokens",
            "under 5% of a request",
            f"{own['share']:.1%}: {own['request']:.3f} s beside {own['generate']:.3f} s of `generate`",
        ))  # fmt: skip
    if stock := found.get("transformers"):
        said = f"{stock['request']:.3f} s" if "request" in stock else f"did not answer: {stock['failed']}"
        rows.append(("the same request to `transformers serve`", "", said))
    return ["| | bar | |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--windows", type=int, default=64)
    options = parser.parse_args()
    if not options.docs:
        measure(options.parts or list(PARTS), options.windows)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(between(text, MARKS, table(json.loads(RESULTS.read_text()))), encoding="utf-8")


PARTS = ("own", "transformers", "again", "meanwhile", "load")


def measure(parts: list[str], windows: int) -> None:
    """Run parts, each of which is in the results as soon as it is done."""
    model, tokenizer = load_bundled()
    longspan.extend(model, "longheads:score=bounds")
    with tempfile.TemporaryDirectory() as folder:
        served = Served(model, tokenizer, Path(folder), piece=PIECE, memory=0)
        run = {
            "own": lambda: own_time(served, model, tokenizer),
            "transformers": transformers_serve,
            "again": lambda: again(served, tokenizer, windows),
            "meanwhile": lambda: meanwhile(served, tokenizer, windows),
            "load": lambda: load(served),
        }
        try:
            for part in parts:
                made = {**run[part](), **machine(torch.get_num_threads())}
                held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                RESULTS.write_text(json.dumps({**held, part: made}, indent=1) + "\n")
        finally:
            served.close()


if __name__ == "__main__":
    main()
