"""How fast it could be: what must move or be computed, over the machine's own rates measured in the same run.

Decoding must read the keys and values that are kept, once for each key-value head, and what is scored by. Prefill must
compute the scores and sums of kept pairs, four operations for each channel of each query head, and what is scored by.
Rotation, softmax, copies and choosing are no part of a floor: they are what an implementation may cost less or more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contestants import Contestant, KVPress, Longspan
from longspan.methods import ESA, LongHeads

COPIED = 256 * 2**20  # bytes, well beyond any cache of a processor
MULTIPLIED = 1536  # rows and columns


@dataclass(frozen=True)
class Rates:
    """What the machine does a second: bytes moved, operations of matrix products."""

    bytes: float
    operations: float


def measure_rates(
    dtype: torch.dtype,
    device: str = "cpu",
    rounds: int = 7,
    copied: int = COPIED,
    now: Callable[[], float] = time.perf_counter,
) -> Rates:
    """The best of some rounds each, by the clock that the cases are timed by.

    Bytes: of a copy, those read and those written, or of a sum, those read, whichever is more. Operations: of a product
    in ``dtype`` or in fp32, whichever is more, since a processor without instructions for bf16 does better to convert.
    """
    source = torch.ones(copied // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes / _best(lambda: target.copy_(source), rounds, now)
    moved = max(moved, source.nbytes / _best(lambda: source.sum(), rounds, now))
    size = MULTIPLIED if device == "cpu" else 8192
    operations = 0.0
    for kind in {dtype, torch.float32}:
        x = torch.randn(size, size, device=device).to(kind)
        tries = rounds if kind == torch.float32 or device != "cpu" else 1  # bf16 takes seconds if it is slow
        operations = max(operations, 2 * size**3 / _best(lambda x=x: x @ x, tries, now))
    return Rates(moved, operations)


def _best(work: Callable[[], Tensor], rounds: int, now: Callable[[], float]) -> float:
    times = []
    for _ in range(rounds + (rounds > 1)):
        begun = now()
        work()
        times.append(now() - begun)
    return min(times[1:] or times)


def decode_bytes(one: Contestant, length: int) -> int:
    """Bytes that the ``length``-th token must read: all layers' kept keys and values, and what is scored by."""
    shape, size = one.shape, one.dtype.itemsize
    keys, scored = length, 0
    if isinstance(one, KVPress):
        keys = min(length, one.budget)
    elif isinstance(one, Longspan) and length > one.window:
        method = one.method
        if isinstance(method, LongHeads):
            keys = _in_chunks(method, length - 1)
            scored = _summaries(method, shape.heads, shape.kv_heads) * _candidates(method, length - 1) * shape.width * 4
        elif isinstance(method, ESA):
            initial, local, top_k, _ = method._sizes
            keys = initial + local + top_k + 1  # a token alone is a query chunk of its own
            middle = length - 1 - local - initial
            scored = middle * (one.reduced * size if one.reduced else shape.kv_heads * shape.width * size)
    return shape.layers * (2 * keys * shape.kv_heads * shape.width * size + scored)


def prefill_operations(one: Contestant, length: int) -> int:
    """Operations that a prefill of ``length`` tokens must do, in all layers."""
    shape = one.shape
    pairs, scoring = kept_pairs(one, length), 0
    if isinstance(one, Longspan) and length > one.window:
        method = one.method
        if isinstance(method, LongHeads):
            vectors = _summaries(method, shape.heads, shape.kv_heads)
            compared = sum(_candidates(method, i) for i in range(one.window, length))
            scoring = 2 * vectors * compared * shape.width
            if method.score == "representation":  # Eq 2 is attention within each chunk
                size = method._lk[0]
                scoring += 4 * shape.heads * (length // size) * size * size * shape.width
        elif isinstance(method, ESA):
            initial, local, _, _ = method._sizes
            compared = sum((z - a) * (a - local - initial) for a, z in _pieces(method, one.window, length))
            scoring = 2 * compared * (one.reduced or shape.kv_heads * shape.width)
    return shape.layers * (4 * shape.heads * pairs * shape.width + scoring)


def kept_pairs(one: Contestant, length: int) -> int:
    """How many pairs of a query and a key one head attends to in a prefill of ``length`` tokens."""
    whole = length * (length + 1) // 2
    if not isinstance(one, Longspan) or length <= one.window:
        return whole
    method, inside = one.method, one.window * (one.window + 1) // 2
    if isinstance(method, LongHeads):
        return inside + sum(_in_chunks(method, i) for i in range(one.window, length))
    if isinstance(method, ESA):
        initial, local, top_k, _ = method._sizes
        own = sum(
            (z - a) * (initial + local + top_k) + (z - a) * (z - a + 1) // 2
            for a, z in _pieces(method, one.window, length)
        )
        return inside + own
    return whole


def floor_seconds(phase: str, one: Contestant, length: int, rates: Rates) -> float:
    """The floor of a prefill of ``length`` tokens, or of decoding the token after ``length`` held ones."""
    if phase == "decode":
        return decode_bytes(one, length + 1) / rates.bytes
    return prefill_operations(one, length) / rates.operations


def _in_chunks(method: LongHeads, i: int) -> int:
    """Keys that query ``i`` of LongHeads keeps: its own chunk as far as it goes, all others whole."""
    size, count = method._lk
    return (count - 1) * size + i % size + 1


def _candidates(method: LongHeads, i: int) -> int:
    """Chunks that query ``i`` chooses from: the full ones between the first and the local ones."""
    return max(i // method._lk[0] - method.local_chunks + 1 - int(method.first_chunk), 0)


def _summaries(method: LongHeads, heads: int, kv_heads: int) -> int:
    """Vectors that stand for a chunk."""
    return {"representation": heads, "mean": kv_heads, "bounds": 2 * kv_heads, "submeans": 4 * kv_heads}[method.score]


def _pieces(method: ESA, window: int, length: int) -> list[tuple[int, int]]:
    return method.selection(window).runs(window, length, length)
