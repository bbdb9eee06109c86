"""The server's own time of a request, beside `generate` and `transformers serve`: the part `own` of serve.py."""

from __future__ import annotations

import functools
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch

from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.serve.security import Guard

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.serving import Served, wait_for

TOKENS, TIMES = 32, 21
PROMPT = heldout_text()[:800]


@contextmanager
def timed_forwards(model):
    """The tokens and seconds of each forward of the model in this block."""
    forward, found = model.forward, []

    @functools.wraps(forward)
    def timed(*args, **options):
        began = time.perf_counter()
        out = forward(*args, **options)
        found.append((options["input_ids"].shape[1], time.perf_counter() - began))
        return out

    model.forward = timed
    try:
        yield found
    finally:
        model.forward = forward


@contextmanager
def timed(owner, name: str):
    """The seconds of each call of this function in this block."""
    call, found = getattr(owner, name), []

    @functools.wraps(call)
    def measured(*args, **options):
        began = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            found.append(time.perf_counter() - began)

    setattr(owner, name, measured)
    try:
        yield found
    finally:
        setattr(owner, name, call)


@contextmanager
def timed_inside():
    """The seconds of each request in this block inside the server: from its call to the last byte of the answer."""
    call, found = Guard.__call__, []

    async def measured(self, scope, receive, send):
        began = time.perf_counter()

        async def sent(message):
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                found.append(time.perf_counter() - began)

        await call(self, scope, receive, sent)

    Guard.__call__ = measured
    try:
        yield found
    finally:
        Guard.__call__ = call


def own_time(served: Served, model, tokenizer) -> dict:
    """What a request takes beside `generate` of the same tokens; `transformers serve` takes turns with both.

    `computing` is what the server's metrics count as that, less the look for a cache: preparing a forward, the forward,
    sampling. `generate` does all three. What else a request takes inside the server is the server's own.
    """
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    stock, _ = load_bundled()

    def generate(one) -> float:
        began = time.perf_counter()
        one.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, pad_token_id=0)
        return time.perf_counter() - began

    def post(client: httpx.Client, name: str) -> float:
        began = time.perf_counter()
        client.post("/v1/completions", json={"model": name, **body}).raise_for_status()
        return time.perf_counter() - began

    def computed() -> float:
        sample = served.host.metrics.registry.get_sample_value
        return sum(sample("longspan_seconds_sum", {"phase": phase}) or 0 for phase in ("prefill", "decode"))

    names = "request", "inside", "computing", "forwards", "generate", "generate_forwards", "stock_generate", "peer"
    taken: dict[str, list[float]] = {name: [] for name in names}
    with peer() as (client, failed):
        for _ in range(TIMES + 2):
            before = computed()
            with timed_forwards(model) as forwards, timed_inside() as inside, timed(served.host.caches, "take") as took:
                taken["request"].append(post(served.http, "tiny"))
                wait_for(lambda: inside)
            taken["inside"] += inside
            taken["computing"].append(computed() - before - sum(took))
            taken["forwards"].append(sum(took for _, took in forwards))
            with timed_forwards(model) as forwards:
                taken["generate"].append(generate(model))
            taken["generate_forwards"].append(sum(took for _, took in forwards))
            taken["stock_generate"].append(generate(stock))
            if client is not None:
                taken["peer"].append(post(client, str(FOLDER)))
    shares = {
        share: statistics.median(1 - b / a for a, b in zip(taken[whole][2:], taken[part][2:], strict=True))
        for share, whole, part in (
            ("share", "request", "generate"), ("own", "inside", "computing"),
            ("outside_forwards", "request", "forwards"), ("inside_outside_forwards", "inside", "forwards"),
            ("generate_outside_forwards", "generate", "generate_forwards"),
        )
    }  # fmt: skip
    shares["own_seconds"] = statistics.median(
        a - b for a, b in zip(taken["inside"][2:], taken["computing"][2:], strict=True)
    )
    found = {name: statistics.median(all[2:]) for name, all in taken.items() if all}
    asked = {"transformers_serve": found.pop("peer")} if "peer" in found else {"transformers_serve_failed": failed}
    return {"tokens": TOKENS, **shares, **found, **asked}


@contextmanager
def peer() -> Iterator[tuple[httpx.Client | None, str]]:
    """A client of `transformers serve` with the stock model; or None, and why it does not run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(FOLDER), "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen([*command, "--device", "cpu"], stdout=log, stderr=log)
        except OSError as error:
            yield None, str(error)
            return
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_for(lambda: process.poll() is not None or _up(client), 300)
                if process.poll() is None:
                    yield client, ""
                    return
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            yield None, f"`transformers serve` ended with {process.returncode}: {' '.join(last)}"[:300]
        finally:
            process.terminate()
            process.wait()


def _up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False
