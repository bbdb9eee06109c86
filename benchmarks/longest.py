"""A text of 390 windows through every method on the bundled model: memory, and what is computed at its end in fp64.

    python benchmarks/longest.py --out DIR                         # every method, each in a process of its own; hours
    python benchmarks/longest.py --out DIR --methods longheads,esa --tokens 200000

The text is read in prefill chunks, and at ``PLACES`` of it one token by itself: each layer's attention there is
compared with the fp64 oracle's over the keys that the method keeps, which for a method that chooses are those that it
chose. At the last place the logits are compared with those of the same model whose layers return the oracle's
attention. Memory is the peak of the process above that of the loaded model, without what the comparison keeps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import longspan
from longspan.attend import Observer
from longspan.bundled import heldout_text, load_bundled
from longspan.documents.contents import attached
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.methods import METHODS
from longspan.oracle import oracle
from longspan.positions import FarPosition, InOrder

TOKENS, CHUNK, PLACES = 200_000, 1024, (0.25, 0.5, 0.75, 1.0)


def status(name: str) -> int:
    """Bytes, by a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


class Watched:
    """Every layer's keys and values, and its attention to single tokens beside the oracle's.

    Attributes:
        replaces: whether a layer returns the oracle's attention. errors: of each single token, by layer, in parts of
            the largest output.
    """

    def __init__(self, model: Any, tokens: int) -> None:
        config = model.config
        shape = config.num_hidden_layers, 2, config.num_key_value_heads, tokens, config.head_dim
        self.stored, self.attachment = torch.zeros(shape), attached(model)
        self.stored.fill_(1.0)  # so that its memory is there from the start
        self.attender, self.replaces = self.attachment.attender, False
        self.errors: list[float] = []
        self.length = [0] * config.num_hidden_layers
        self._run = self.attender.run
        self.attender.run = self.run
        self.observer = Observer(every=True, scores=False)

    def run(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, store: Any) -> Tensor:
        number, past = layer.number, store.length
        stop = past + q.shape[2]
        for n, x in enumerate((k, v)):
            self.stored[number, n, :, past:stop] = x[0]
        single = q.shape[2] == 1
        watched = single and self.attender.method.selects
        if watched:
            self.attender.observer = self.observer
            self.observer.choices.clear()
            self.observer.begin()
        out = self._run(q, k, v, layer, store)
        if watched:
            self.attender.observer = None
        if single:
            truth = self.truth(q, layer, stop)
            self.errors.append(float((out.double() - truth).abs().max() / truth.abs().max()))
            if self.replaces:
                return truth.to(out.dtype)
        return out

    def truth(self, q: Tensor, layer: Any, total: int) -> Tensor:
        """``[1, 1, H, Dv]`` in fp64."""
        method, window = self.attender.method, self.attender.window
        keys, values = (x[None, :, :total] for x in self.stored[layer.number])
        i, j = torch.tensor([[total - 1]]), torch.arange(total)[None]
        if method.selects and total > window:
            keep, rel = self.chosen(q.shape[1], i, j)
        else:
            keep = method.selection(window).keep(i, j) & (j <= i)
            rel = method.positions(window).rel(i, j)
            some = keep[0].nonzero()[:, 0]
            keep, rel, keys, values = keep[:, some], rel[:, some], keys[:, :, some], values[:, :, some]
        rope = replace(layer.rope, table=self.attender.tables.angles(layer.rope.table, total))
        factor = method.query_factor(window, total)
        return oracle(q, keys, values, keep, rel, rope, scale=layer.scale, query_factor=factor).transpose(1, 2)

    def chosen(self, heads: int, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """``keep`` and ``rel`` ``[1, H, 1, N]`` of the choice that was recorded."""
        (one,) = self.observer.choices
        keep = torch.zeros(heads, j.shape[1], dtype=torch.bool)
        for start, stop in one.kept:
            keep[:, start:stop] = True
        for head in range(heads):
            for unit in one.units[head * len(one.units) // heads].tolist():
                first = one.origin + unit * one.size
                keep[head, first : first + one.size] = True
        positions = self.attender.method.positions(self.attender.window)
        if isinstance(positions, InOrder):
            rel = keep.long().flip(-1).cumsum(-1).flip(-1) - keep.long()
        elif isinstance(positions, FarPosition):
            rel = torch.where(j < one.kept[-1][0], positions.far, i - j).expand_as(keep)
        else:
            raise NotImplementedError(f"the positions of {type(positions).__name__}")
        return keep[None, :, None], rel[None, :, None]


@torch.inference_mode()
def measure(method: str, tokens: int) -> dict[str, Any]:
    model, tokenizer = load_bundled()
    ids = tokenizer(heldout_text(), return_tensors="pt").input_ids[:, :tokens]
    ids = ids.repeat(1, -(-tokens // ids.shape[1]))[:, :tokens]
    report = longspan.extend(model, method, length=tokens)
    watched, cache = Watched(model, tokens), longspan.new_cache(model)
    before, began, past = status("VmRSS"), time.process_time(), 0
    for share in PLACES:
        place = int(share * tokens) - 1
        for start in range(past, place, CHUNK):
            stop = min(start + CHUNK, place)
            model(input_ids=ids[:, start:stop], **{CACHE_ARGUMENT: cache}, use_cache=True, logits_to_keep=1)
        if place == tokens - 1:
            peak, seconds, other = status("VmHWM"), time.process_time() - began, deepcopy(cache)
        logits = model(input_ids=ids[:, place : place + 1], **{CACHE_ARGUMENT: cache}, use_cache=True).logits[0, -1]
        past = place + 1
    errors = list(watched.errors)
    watched.replaces = True
    exact = model(input_ids=ids[:, -1:], **{CACHE_ARGUMENT: other}, use_cache=True).logits[0, -1]
    return {
        "method": method, "options": str(report.method), "tokens": tokens, "mib": round((peak - before) / 2**20),
        "seconds": round(seconds), "attention": max(errors), "logits": float((logits - exact).abs().max()),
        "largest": float(exact.abs().max()), "token": bool(logits.argmax() == exact.argmax()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--alone", help="measure this method in this process")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options.alone, options.tokens)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for method in options.methods.split(","):
        words = ["--out", options.out, "--alone", method, "--tokens", options.tokens]
        done = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
        said = done.stdout.strip()
        if done.returncode:
            last = "" if done.returncode < 0 else (done.stderr.strip().splitlines() or [""])[-1]
            said = json.dumps({"method": method, "failed": last or f"ended by signal {-done.returncode}"})
        print(said, flush=True)
        with (options.out / "longest.jsonl").open("a") as file:
            file.write(said + "\n")


if __name__ == "__main__":
    main()
