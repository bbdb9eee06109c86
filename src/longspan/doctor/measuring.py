"""Times a live model while it reads a text: each prefill chunk, and tokens after chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.doctor.fit import Line, ReadingPlan, duration, tokens_row
from longspan.errors import LongspanError
from longspan.hf import LongspanCache, new_cache
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.logits import last_logits

WARM = 16  # tokens that are read before anything is timed
FIRST = 256  # that say beforehand how long it will take at least
TOKENS = 16  # that are decoded after a prefill chunk
PASSES = 2  # over the same prefill chunks, of which the faster one counts: others use the machine too
QUICK = 10.0  # seconds; a pass that takes longer is the only one
OFTEN = 5.0  # seconds from one line about progress to the next

Say = Callable[[str], object]


class NoEstimateError(Exception):
    """Why there is no estimate, in words."""


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
        tokens: decoded ones, after chunks that are fitted or the last one; of those after a prefill chunk the lower
            quartile, since the first find the processor's caches full of other things.
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
        return sum(point.stop - point.start for point in self.prefill_chunks)


def measure(model: PreTrainedModel, device: torch.device, plan: ReadingPlan, seconds: float | None, say: Say) -> Run:
    """Time an extended model.

    Args:
        device: where it takes its tokens.
        seconds: the most that it may take, by its clock; None for no limit.
        say: is told beforehand how long it will take, and then how far it is, in lines.

    Raises:
        NoEstimateError: it takes longer than ``seconds``, which is known as early as can be.
    """
    now, clock = _clock(device)
    ids = some_text(model, plan.stop + (TOKENS + 1) * (len(plan.prefill_chunks) + 1), device)
    wall = time.perf_counter()
    with torch.inference_mode():
        _forward(model, ids[:, :WARM], new_cache(model))  # makes one-time parts, such as tables and thread pools
        begun = now()
        first = min(FIRST, plan.stop)
        _forward(model, ids[:, :first], new_cache(model))
        least = (now() - begun) / first * plan.stop
        say(f"measuring: reading {plan.stop:,} of {plan.length:,} tokens takes at least {duration(least)}")
        _refuse(least, seconds)
        passes = [_pass(model, ids, plan, now, seconds, say)]
        spent = now() - begun
        while len(passes) < PASSES and spent < QUICK and (seconds is None or 2 * spent < seconds):
            passes.append(_pass(model, ids, plan, now, None, lambda line: None))
    best = [[_fastest(points) for points in zip(*kind, strict=True)] for kind in zip(*passes, strict=True)]
    return Run(clock, tuple(best[0]), tuple(best[1]), len(passes), time.perf_counter() - wall)


def some_text(model: PreTrainedModel, count: int, device: torch.device) -> Tensor:
    """Token ids ``[1, count]``, the same every time, drawn from all that the model has."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(0)).to(device)


def _refuse(takes: float, limit: float | None) -> None:
    if limit is not None and takes > limit:
        raise NoEstimateError(
            f"measuring takes {duration(takes)} or more, and {duration(limit)} were allowed; allow more seconds, or "
            "leave the limit out"
        )


def _forward(model: PreTrainedModel, ids: Tensor, cache: LongspanCache) -> None:
    model(input_ids=ids, use_cache=True, **last_logits(model, 1), **{CACHE_ARGUMENT: cache})


def _pass(
    model: PreTrainedModel, ids: Tensor, plan: ReadingPlan, now: Callable[[], float], limit: float | None, say: Say
) -> tuple[list[Point], list[Point]]:
    """Read the chunks of a plan once, with tokens decoded after those that are fitted and after the last one."""
    cache, at, said, begun = new_cache(model), 0, time.perf_counter(), now()
    read: list[Point] = []
    decoded: list[Point] = []
    for start, stop in plan.prefill_chunks:
        length, chunk_begun = stop - start, now()
        _forward(model, ids[:, at : at + length], cache)
        took = now() - chunk_begun
        read.append(Point(at, at + length, took))
        at += length
        if start >= plan.fitted or stop == plan.stop:
            decoded.append(_decoded(model, ids, cache, at, now, took / 2 + 0.1))
            at = decoded[-1].stop
        left = _left(read, plan.stop - stop)
        _refuse(now() - begun + left, limit)
        if left and time.perf_counter() - said > OFTEN:
            say(f"{stop:,} of {plan.stop:,} tokens are read, about {duration(left)} to go")
            said = time.perf_counter()
    return read, decoded


def _left(read: Sequence[Point], tokens: int) -> float:
    """Seconds for the next ``tokens`` tokens, by the chunks before them."""
    rows, last = [tokens_row(point.start, point.stop) for point in read], read[-1]
    if len(read) < 2:
        return last.seconds * tokens / (last.stop - last.start)
    return Line(rows, [point.seconds for point in read]).at(tokens_row(last.stop, last.stop + tokens))


def _decoded(
    model: PreTrainedModel, ids: Tensor, cache: LongspanCache, at: int, now: Callable[[], float], most: float
) -> Point:
    """``TOKENS`` tokens after ``at`` others, or one and as many as fit into ``most`` seconds."""
    waits: list[float] = []
    while len(waits) < (TOKENS if sum(waits) < most else 1):
        begun = now()
        _forward(model, ids[:, :1], cache)
        waits.append(now() - begun)
    return Point(at, at + len(waits), sorted(waits)[len(waits) // 4])


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
