"""Where a GPU's time goes: a prefill and a token of some layers, the wall's time, the GPU's own, and its kernels."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from contestants import Shape, make

KERNELS = 3  # that are named, those that take longest
METHODS = ("flash", "full", "dca", "longheads", "longheads-bounds", "esa")
GRAPHS = ("full-graph", "dca-graph", "longheads-graph", "esa-graph")


@dataclass(frozen=True)
class Part:
    """What is profiled: a prefill of ``length`` tokens, or the token after them."""

    phase: str
    method: str
    length: int
    layers: int
    runs: int  # whose median is the wall's time


def parts() -> list[Part]:
    """One layer's prefills, and a token of four layers."""
    return [
        *(Part("prefill", name, 16384, 1, 3) for name in METHODS),
        *(Part("decode", name, 131072, 4, 10) for name in (*METHODS, *GRAPHS)),
        *(Part("prefill", name, 65536, 1, 1) for name in METHODS),
    ]


@torch.inference_mode()
def profiles(shape: Shape, device: str = "cuda") -> Iterator[dict[str, Any]]:
    """A row of each part; ``gpu_ms`` is the sum of its kernels and copies, ``launches`` their number."""
    for part in parts():
        one = make(part.phase, part.method, replace(shape, layers=part.layers), torch.bfloat16, device)
        given = one.shape.qkv(part.length if part.phase == "prefill" else 1, torch.bfloat16, device)
        if part.phase == "decode":
            one.fill(part.length)

        def run(one=one, given=given, part=part) -> None:
            if part.phase == "prefill":
                one.clear()
            one(*given)

        row = {"phase": part.phase, "method": part.method, "length": part.length, "layers": part.layers}
        yield {**row, **measured(run, part.runs)}
        del one, given, run
        gc.collect()
        torch.cuda.empty_cache()


def measured(run: Callable[[], None], count: int) -> dict[str, Any]:
    """The median of some runs by the wall, and one run under torch's profiler."""
    run(), run()
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        run()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in found.events():
        if event.device_type == DeviceType.CUDA:
            name = event.name.removeprefix("void ").removeprefix("at::native::")[:28]
            spent[name] += event.device_time
            launches[name] += 1
    named = (f"{launches[name]}x {name} {us / 1e3:.3f}" for name, us in spent.most_common(KERNELS))
    return {
        "wall_ms": f"{1e3 * statistics.median(times):.3f}",
        "gpu_ms": f"{sum(spent.values()) / 1e3:.3f}",
        "launches": sum(launches.values()),
        "kernels_ms": "; ".join(named),
    }
