"""The libraries of a platform wheel beside the one that is compiled here: a layer's prefill and tokens, packed weights.

    make wheel
    python benchmarks/levels.py dist/platform/*.whl

All take turns in one process on one thread, by the process's own time. A ratio is the median over rounds of the ratio
within a round; that of the compiled library to itself is the noise. The layer has 8 heads of 128 and 2 key-value heads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import longspan
from common import Times, between, machine, ratio
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.kernels import cpu
from longspan.kernels.cpu import levels
from longspan.kernels.linear import linear
from longspan.weights.rounding import rounded

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "levels.json", ROOT / "docs" / "quickstart.md"
MARKS = "<!-- levels -->", "<!-- /levels -->"
AGAIN = "here again"
TOKENS = 2048
DECODED, PRODUCTS = 4, 50  # of a turn: short ones meet the same of what else the machine does
Case = Callable[[], float]  # seconds


def table() -> Iterator[str]:
    """The block of the page."""
    body = json.loads(RESULTS.read_text(encoding="utf-8"))
    names = [name for name in body["rows"][0]["ratios"] if name != AGAIN]
    yield (
        f"Time over that of the library compiled here ({body['compiler']}), {body['cpu']}, one thread, medians of "
        f"{body['rounds']} rounds and more (`python benchmarks/levels.py`); this processor takes `{body['chosen']}`:\n"
    )
    yield f"| | {' | '.join(f'`{name}`' for name in names)} | noise |"
    yield f"| --- |{' ---: |' * (len(names) + 1)}"
    for row in body["rows"]:
        figures = (f"{row['ratios'][name]:.2f}" for name in [*names, AGAIN])
        yield f"| {row['what']} | {' | '.join(figures)} |"


def layer(method: str, dtype: torch.dtype) -> tuple[LlamaForCausalLM, torch.Tensor]:
    """A model of one layer under a method, and a text."""
    torch.manual_seed(0)
    shape = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
    config = LlamaConfig(
        **shape, intermediate_size=256, num_hidden_layers=1, vocab_size=512, max_position_embeddings=512
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    longspan.extend(model, method)
    return model, torch.randint(1, 512, (1, TOKENS))


def of_prefill(method: str, dtype: torch.dtype) -> Case:
    model, ids = layer(method, dtype)

    def run() -> float:
        begun = time.process_time()
        model(ids, logits_to_keep=1)
        return time.process_time() - begun

    return run


def of_tokens(method: str, dtype: torch.dtype) -> Case:
    model, ids = layer(method, dtype)
    given = {CACHE_ARGUMENT: longspan.new_cache(model)}
    model(ids, logits_to_keep=1, **given)

    def run() -> float:
        model(ids[:, :1], **given)  # finds the kernels of a library that was just taken
        begun = time.process_time()
        for _ in range(DECODED):
            model(ids[:, :1], **given)
        return time.process_time() - begun

    return run


def of_packed_weights(bits: int) -> Case:
    matrix, x = rounded(torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0)), bits), torch.ones(1, 2048)

    def run() -> float:
        begun = time.process_time()
        for _ in range(PRODUCTS):
            linear(x, matrix, impl="compiled")
        return time.process_time() - begun

    return run


def take(name: str) -> None:
    """Make this the library of the process."""
    os.environ[cpu.SWITCH] = name.removesuffix(" again")
    cpu.forget()
    if (reason := cpu.unavailable_reason()) is not None:
        raise SystemExit(reason)


def measure(case: Case, names: list[str], rounds: int) -> Times:
    """In turns, another one first in every round; the first round, which builds tables, is left out."""
    times: Times = []
    for n in range(1 + rounds):
        turn = {}
        for name in names[n % len(names) :] + names[: n % len(names)]:
            take(name)
            turn[name] = case()
        times += [turn] if n else []
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=12, help="of a prefill; five times as many of what is short")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory()
    with zipfile.ZipFile(given.wheel) as archive:
        built = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder.name, built)
    levels.BUILT = Path(folder.name, built[0]).parent
    run = [x.name for x in levels.LEVELS[platform.machine()] if x.needs <= levels.features()]
    names = [cpu.HERE, *run, AGAIN]
    take(cpu.HERE)
    compiler = cpu.origin().removeprefix("compiled here by ")
    rows = []
    with torch.inference_mode():
        cases = {f"a product with `int{bits}`": (of_packed_weights(bits), 5 * given.rounds) for bits in (4, 8)}
        for dtype in (torch.float32, torch.bfloat16):
            for method in ("dca", "longheads", "esa"):
                form = f"`{method}`, {str(dtype).removeprefix('torch.')}"
                cases[f"prefill, {form}"] = of_prefill(method, dtype), given.rounds
                cases[f"tokens, {form}"] = of_tokens(method, dtype), 5 * given.rounds
        for what, (case, rounds) in cases.items():
            times = measure(case, names, rounds)
            ratios = {name: round(ratio(times, name, cpu.HERE), 3) for name in names[1:]}
            seconds = round(statistics.median(each[cpu.HERE] for each in times), 4)
            rows.append({"what": what, "seconds": seconds, "ratios": ratios})
            print(rows[-1], flush=True)
    body = {"compiler": compiler, "chosen": run[0], "rounds": given.rounds, **machine(1), "rows": rows}
    RESULTS.write_text(json.dumps(body, indent=1) + "\n")
    PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), MARKS, table()), encoding="utf-8")


if __name__ == "__main__":
    main()
