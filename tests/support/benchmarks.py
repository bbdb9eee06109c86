"""What the tests of the benchmarks share: a small layer, methods that choose, and rows of results."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from longspan.methods import ESA, LongHeads

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import contestants  # noqa: E402

SMALL = contestants.Shape(heads=4, kv_heads=2, width=8, layers=3, window=64)
CHOOSING = {
    "longheads": LongHeads(chunk_length=8, num_chunks=5),
    "longheads, mean": LongHeads(chunk_length=8, num_chunks=5, score="mean"),
    "longheads, bounds": LongHeads(chunk_length=8, num_chunks=8, local_chunks=1, score="bounds"),
    "esa": ESA(initial=4, local=16, top_k=12, query_chunk=8),
}


def ours(method, dtype=torch.float32, **more):
    return contestants.Longspan("one", SMALL, dtype, method, **more)


def row(**changes):
    base = {"phase": "decode", "dtype": "bf16", "heads": 32, "kv_heads": 8, "width": 128, "layers": 1}
    base["method"] = "esa"
    return {**base, "length": 65536, "seconds": "0.5", "over_stock": "", **changes}
