"""Times a live model for a few seconds: prefill chunks of a prompt and single tokens, at growing lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.doctor.law import Law, fit
from longspan.doctor.work import Counter, LayerShape
from longspan.errors import LongspanError
from longspan.hf import LongspanCache, new_cache
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.layer import Layer
from longspan.hf.logits import last_logits

PREFILL_CHUNK = 2048  # tokens of one at most; the first are shorter, so that a slow model is not asked for too much
FIRST = 128
WARM = 16  # that are read before anything is timed
TOKENS = 16  # that are decoded after a prefill chunk
FILLED = 2**28  # bytes of keys and values, at most, that a cache is filled up with to time a token after more of them
PASSES = 2  # over the same prefill chunks, of which the faster one counts: others use the machine too


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        start, stop: a prefill chunk is the tokens ``start : stop``; a single token comes after ``start`` others.
        seconds: of the fastest pass.
    """

    start: int
    stop: int
    seconds: float


@dataclass(frozen=True)
class Run:
    """A model's times.

    Attributes:
        clock: ``"cpu"``, the process's own time on one thread, which leaves out what other programs had; or ``"wall"``.
        prefill_chunks: prefill chunks of a prompt.
        tokens: decoded ones; of those after a prefill chunk the lower quartile, since the first find the processor's
            caches full of other things. After those may come others, of a cache that was filled up.
        passes: how many there were.
        seconds: of it all, by the wall.
    """

    clock: str
    prefill_chunks: tuple[Point, ...]
    tokens: tuple[Point, ...]
    passes: int
    seconds: float

    @property
    def length(self) -> int:
        """Tokens up to which a prompt was read."""
        return self.prefill_chunks[-1].stop


@dataclass(frozen=True)
class Rates:
    """A run's laws, and how wrong they are where they were not fitted.

    Attributes:
        prefill, decode: fitted to all points.
        fitted_to, tested_at: a law that was fitted up to the first length alone was held to what the second one took.
        prefill_error, decode_error: of that law, relative and signed; None where the run was too short for a test.
        unscored: whether no query of the run chose anything, so that scoring costs what the prior says.
    """

    prefill: Law
    decode: Law
    fitted_to: int | None
    tested_at: int | None
    prefill_error: float | None
    decode_error: float | None
    unscored: bool


def ladder(length: int) -> list[tuple[int, int]]:
    """Prefill chunks of a prompt of ``length`` tokens, doubling up to ``PREFILL_CHUNK``."""
    edges = [0]
    while edges[-1] < length:
        edges.append(edges[-1] + min(max(FIRST, edges[-1]), PREFILL_CHUNK, length - edges[-1]))
    return list(zip(edges[:-1], edges[1:], strict=True))


def shapes(layers: Sequence[Layer], rotations: int) -> tuple[LayerShape, ...]:
    """The probed layers whose cache grows.

    Args:
        rotations: of each key, that the layers with the method store.
    """
    found = []
    for layer in layers:
        if layer.sliding is None:
            attached = layer.rope is not None
            sizes = layer.heads, layer.kv_heads, layer.key_dim, layer.value_dim
            found.append(
                LayerShape(layer.index, *sizes, rotations if attached else 1, layer.itemsize, attached=attached)
            )
    return tuple(sorted(found, key=lambda shape: shape.number))


def measure(model: PreTrainedModel, device: torch.device, most: int, seconds: float) -> Run:
    """Time an extended model.

    Args:
        device: where it takes its tokens.
        most: tokens that the run reads at most.
        seconds: about how long it may take, by its clock; a prefill chunk and a token are measured however slow it is.
    """
    now, clock = _clock(device)
    ids = some_text(model, most + (TOKENS + 1) * (len(ladder(most)) + 1), device)
    begun, wall = now(), time.perf_counter()
    with torch.inference_mode():
        _read(model, ids, [(0, WARM)], now, lambda *_: True)  # makes one-time parts, such as tables and thread pools
        left = seconds - (now() - begun)
        first, cache = _read(model, ids, ladder(most), now, lambda spent, last: PASSES * (spent + 2 * last) < left)
        passes, spent = [first], now() - begun
        # A model that is so slow that one prefill chunk takes all of the time has one pass.
        while len(passes) < PASSES and spent * (1 + 1 / len(passes)) < 1.5 * seconds:
            again, cache = _read(model, ids, [(p.start, p.stop) for p in first[0]], now, lambda *_: True)
            passes.append(again)
            spent = now() - begun
        filled = _far(model, ids, cache, most, now)
    best = [[_fastest(points) for points in zip(*kind, strict=True)] for kind in zip(*passes, strict=True)]
    return Run(clock, tuple(best[0]), (*best[1], *filled), len(passes), time.perf_counter() - wall)


def rates(run: Run, counter: Counter) -> Rates:
    """The laws of a run. Its last prefill chunk is what they are tested at."""
    works = [counter.call(point.start, point.stop) for point in run.prefill_chunks]
    each = [counter.token(point.start) for point in run.tokens]
    seconds, waits = [p.seconds for p in run.prefill_chunks], [p.seconds for p in run.tokens]
    prefill, decode, last = fit(works, seconds), fit(each, waits), len(works) - 1
    unscored = not any(work.scored for work in works)
    if len(works) < 4:
        return Rates(prefill, decode, None, None, None, None, unscored)
    # At half of the length, which is the last prefill chunk where these still double.
    kept = max(n for n, point in enumerate(run.prefill_chunks) if n < 3 or point.stop <= run.length // 2) + 1
    early, soon = fit(works[:kept], seconds[:kept]), fit(each[:kept], waits[:kept])
    said = sum(early.seconds(work) for work in works)
    return Rates(
        prefill=prefill,
        decode=decode,
        fitted_to=run.prefill_chunks[kept - 1].stop,
        tested_at=run.length,
        prefill_error=said / sum(seconds) - 1,
        decode_error=soon.seconds(each[last]) / waits[last] - 1,
        unscored=unscored,
    )


def some_text(model: PreTrainedModel, count: int, device: torch.device) -> Tensor:
    """Token ids ``[1, count]``, the same every time, drawn from all that the model has."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(0)).to(device)


def _read(
    model: PreTrainedModel,
    ids: Tensor,
    prefill_chunks: Sequence[tuple[int, int]],
    now: Callable[[], float],
    goes_on: Callable[[float, float], bool],
) -> tuple[tuple[list[Point], list[Point]], LongspanCache]:
    """Read prefill chunks, with tokens decoded after each, as long as ``goes_on`` (seconds so far, of the last one)."""
    cache, at, spent = new_cache(model), 0, 0.0
    more = {**last_logits(model, 1), CACHE_ARGUMENT: cache}
    read, decoded = [], []
    for start, stop in prefill_chunks:
        length = stop - start
        begun = now()
        model(input_ids=ids[:, at : at + length], use_cache=True, **more)
        took = now() - begun
        read.append(Point(at, at + length, took))
        at += length
        point, waited = _decoded(model, ids, cache, at, now, took / 2 + 0.1)
        decoded.append(point)
        at = point.stop
        last, spent = took + waited, spent + took + waited
        if not goes_on(spent, last):
            break
    return (read, decoded), cache


def _decoded(
    model: PreTrainedModel, ids: Tensor, cache: LongspanCache, at: int, now: Callable[[], float], most: float
) -> tuple[Point, float]:
    """``TOKENS`` tokens after ``at`` others, or one and as many as fit into ``most`` seconds; and how long all took."""
    waits: list[float] = []
    while len(waits) < (TOKENS if sum(waits) < most else 1):
        begun = now()
        model(input_ids=ids[:, :1], use_cache=True, **{CACHE_ARGUMENT: cache})
        waits.append(now() - begun)
    return Point(at, at + len(waits), sorted(waits)[len(waits) // 4]), sum(waits)


def _far(model: PreTrainedModel, ids: Tensor, cache: LongspanCache, most: int, now: Callable[[], float]) -> list[Point]:
    """Tokens after twice, four times, … as many others as were read, up to ``most`` and ``FILLED`` bytes.

    The time of a token by a method that chooses nothing depends on the number of keys, not on what they are; so the
    cache is filled with copies of its own. Nothing is measured where an index or another cache would have to follow.
    """
    found: list[Point] = []
    if any(store.index is not None for store in cache.stores) or len(cache.stores) < len(cache.layers):
        return found
    length = cache.get_seq_length()
    while length < most and 2 * sum(store.nbytes for store in cache.stores) <= FILLED:
        more = min(length, most - length)
        for store in cache.stores:
            store.append([keys[:, :, :more].clone() for keys in store.keys], store.values[:, :, :more].clone())
        points: list[Point] = []
        for _ in range(PASSES):
            points.append(_decoded(model, ids, cache, points[-1].stop if points else length + more, now, 0.1)[0])
        found.append(_fastest(points))
        length = points[-1].stop
    return found


def _fastest(points: Sequence[Point]) -> Point:
    return min(points, key=lambda point: point.seconds)


def _clock(device: torch.device) -> tuple[Callable[[], float], str]:
    if device.type != "cpu":
        if not torch.accelerator.is_available():
            raise LongspanError(f"the model is on {device}, which cannot be waited for, so nothing can be timed there")

        def done() -> float:
            torch.accelerator.synchronize(device)
            return time.perf_counter()

        return done, "wall"
    return (time.process_time, "cpu") if torch.get_num_threads() == 1 else (time.perf_counter, "wall")
