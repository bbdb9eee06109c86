"""Times a live model for a few seconds, and extrapolates from two lengths, as a line, to the one that is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import LongspanError
from longspan.hf import LongspanCache, new_cache
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.logits import last_logits

PREFILL_CHUNK = 2048  # tokens of one at most; the first are shorter, so that a slow model is not asked for too much
FIRST = 128
WARM = 16  # that are read before anything is timed
TOKENS = 16  # that are decoded after a prefill chunk
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
            caches full of other things.
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
class Line:
    """``start + slope · n``, of which neither is negative: seconds a token of a prompt of ``n``, or of one after ``n``.

    A prompt of ``n`` tokens then takes ``n · (start + slope · n)``. Keys that every query reads are the slope.
    """

    start: float
    slope: float

    def at(self, n: int) -> float:
        """Seconds a token at ``n`` tokens."""
        return self.start + self.slope * n

    def growth(self, n: int) -> str:
        """How the time of a prompt grows at ``n`` tokens: ``"quadratic"`` if half of it or more is the slope's."""
        return "quadratic" if self.slope * n >= self.start else "linear"


def line(near: tuple[int, float], far: tuple[int, float]) -> Line:
    """The line through two points ``(n, seconds)``; if it is negative somewhere, through the far point alone."""
    (n, early), (m, late) = near, far
    slope = max((late - early) / (m - n), 0.0) if m > n else 0.0
    return Line(late - slope * m, slope) if slope * m <= late else Line(0.0, late / m)


def ladder(length: int) -> list[tuple[int, int]]:
    """Prefill chunks of a prompt of ``length`` tokens, doubling up to ``PREFILL_CHUNK``."""
    edges = [0]
    while edges[-1] < length:
        edges.append(edges[-1] + min(max(FIRST, edges[-1]), PREFILL_CHUNK, length - edges[-1]))
    return list(pairwise(edges))


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
        first = _read(model, ids, ladder(most), now, lambda spent, last: PASSES * (spent + 2 * last) < left)
        passes, spent = [first], now() - begun
        # A model that is so slow that one prefill chunk takes all of the time has one pass.
        while len(passes) < PASSES and spent * (1 + 1 / len(passes)) < 1.5 * seconds:
            again = _read(model, ids, [(p.start, p.stop) for p in first[0]], now, lambda *_: True)
            passes.append(again)
            spent = now() - begun
    best = [[_fastest(points) for points in zip(*kind, strict=True)] for kind in zip(*passes, strict=True)]
    return Run(clock, tuple(best[0]), tuple(best[1]), len(passes), time.perf_counter() - wall)


def lines(run: Run) -> tuple[Line, Line]:
    """Of reading and of writing: through what was measured at all of a run's length and at half of it."""
    ends = [point.stop for point in run.prefill_chunks]
    half = max((n for n, stop in enumerate(ends) if stop <= run.length // 2), default=0)
    spent = [sum(point.seconds for point in run.prefill_chunks[: n + 1]) for n in (half, len(ends) - 1)]
    near, far = run.tokens[half], run.tokens[-1]
    read = line((ends[half], spent[0] / ends[half]), (ends[-1], spent[1] / ends[-1]))
    return read, line((near.start, near.seconds), (far.start, far.seconds))


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
) -> tuple[list[Point], list[Point]]:
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
    return read, decoded


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


def _fastest(points: Sequence[Point]) -> Point:
    return min(points, key=lambda point: point.seconds)


def _clock(device: torch.device) -> tuple[Callable[[], float], str]:
    if device.type != "cpu":
        if not torch.accelerator.is_available():
            raise LongspanError(f"the model is on {device}, which cannot be synchronised, so nothing can be timed")

        def done() -> float:
            torch.accelerator.synchronize(device)
            return time.perf_counter()

        return done, "wall"
    return (time.process_time, "cpu") if torch.get_num_threads() == 1 else (time.perf_counter, "wall")
