"""Tokens a second of requests that a server answers at once, over those of one request at a time.

    python benchmarks/serve_together.py                            # the bundled model
    python benchmarks/serve_together.py PATH --name NAME --tokens 24 --alone 4     # another one, as in transformers

Both take turns, in one process through HTTP; the ratio is the median over rounds of that within a round. Results go
into results/serve.json, a row for each model and method; `python benchmarks/serve.py --docs` puts them into
docs/serve.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import longspan
from common import machine
from longspan.bundled import heldout_text, load_bundled

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.serving import Served, wait_for

RESULTS = Path(__file__).parent / "results" / "serve.json"
LEAST = 3.0


def together(served: Served, prompts: Sequence[str], tokens: int, alone: int, rounds: int) -> dict[str, Any]:
    """Rates of ``prompts`` at once and of the first ``alone`` of them one by one; how many answers are the same."""

    def ask(prompt: str) -> str:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        response = served.http.post("/v1/completions", json=body, timeout=600)
        response.raise_for_status()
        return str(response.json()["choices"][0]["text"])

    taken, same = [], []
    with ThreadPoolExecutor(len(prompts)) as pool:
        for _ in range(rounds + 1):
            began = time.perf_counter()
            own = [ask(prompt) for prompt in prompts[:alone]]
            middle = time.perf_counter()
            answers = list(pool.map(ask, prompts))
            taken.append((alone * tokens / (middle - began), len(prompts) * tokens / (time.perf_counter() - middle)))
            same.append(sum(a == b for a, b in zip(own, answers, strict=False)))
            wait_for(served.idle)
    rates = taken[1:]  # the first round makes threads and tables
    return {
        "requests": len(prompts), "tokens": tokens, "alone": alone, "rounds": rounds,
        "rate_alone": statistics.median(a for a, _ in rates), "rate": statistics.median(b for _, b in rates),
        "ratio": statistics.median(b / a for a, b in rates), "ratios": [round(b / a, 2) for a, b in rates],
        "same": min(same),
    }  # fmt: skip


def bars(found: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str, bool | None]]:
    """As ``bars`` of serve.py."""
    return [
        (
            "together", f"{one['requests']} requests of {one['tokens']} tokens at once, {one['name']} by "
            f"{one['method']}, {one['dtype']}", f"at least {LEAST:.0f} times the tokens a second of one at a time",
            f"{one['ratio']:.1f}: {one['rate']:.0f} a second beside {one['rate_alone']:.0f}; {one['same']} of "
            f"{one['alone']} answers are those of the request alone", one["ratio"] >= LEAST,
        )
        for one in found
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="a model's folder; the bundled one unless given")
    parser.add_argument("--name", default="the bundled model")
    parser.add_argument("--methods", nargs="+", default=["longheads:score=bounds", "dca"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--alone", type=int, default=16, help="of the requests, that are asked one after the other")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    text = heldout_text()
    prompts = [text[n * 1_000 : n * 1_000 + 200 + 29 * n] for n in range(options.requests)]
    for method in options.methods:
        if options.path is None:
            model, tokenizer = load_bundled()
        else:
            dtype = getattr(torch, options.dtype)
            model = AutoModelForCausalLM.from_pretrained(options.path, dtype=dtype).eval()
            tokenizer = AutoTokenizer.from_pretrained(options.path)
        model.generation_config.eos_token_id = None  # all answers are equally long
        longspan.extend(model, method)
        with tempfile.TemporaryDirectory() as folder:
            served = Served(model, tokenizer, Path(folder), memory=0, max_running=options.requests)
            try:
                found = together(served, prompts, options.tokens, options.alone, options.rounds)
            finally:
                served.close()
        about = {"name": options.name, "method": method, "dtype": str(model.dtype).removeprefix("torch.")}
        found = {**about, **found, **machine(torch.get_num_threads())}
        held = json.loads(RESULTS.read_text())
        others = [one for one in held.get("together", ()) if (one["name"], one["method"]) != (options.name, method)]
        held["together"] = [*others, found]
        RESULTS.write_text(json.dumps(held, indent=1) + "\n")
        for _, what, bar, figures, met in bars([found]):
            print(f"{what}: {figures} [{bar}: {'met' if met else 'MISSED'}]", flush=True)


if __name__ == "__main__":
    main()
