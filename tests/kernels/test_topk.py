"""Top-k: every implementation against the reference, which is a loop in Python, and against the contract."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.topk import compiled, masked_topk, max_nearby, topk
from support.jobs import random


@pytest.fixture(params=["torch", "compiled"])
def impl(request):
    if request.param == "compiled" and (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("tie", [0.0, 0.05])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("near", [0, 1, 4])
@pytest.mark.parametrize(("n", "count"), [(1, 1), (7, 7), (50, 1), (333, 100), (97, 65), (700, 5)])
def test_the_reference(impl, n, count, last, tie, near):
    """Also of scores that share the largest nearby, of which many are equal, and of stops beyond the last."""
    check(impl, n, count, last=last, tie=tie, near=near)


@pytest.mark.parametrize(("last", "near", "tie"), [(False, 1, 0.0), (True, 0, 0.05)])
def test_what_lies_behind_the_stop_does_not_count(last, near, tie):
    """Memory that nobody wrote is never chosen, not even where the scores themselves are no numbers."""
    scores = random(3, 2, 1, 40, seed=5)
    given = {"last": last, "near": near, "tie": tie, "start": 2}
    for stop in (9, 25, 40):
        stops, inside = torch.tensor([stop]), scores.clone()
        inside[..., stop:] = float("nan")
        assert torch.equal(masked_topk(inside, 7, stops=stops, **given), topk(scores, 7, stops=stops, **given))
    for nothing in (float("nan"), -torch.inf):
        found = masked_topk(torch.full((1, 1, 40), nothing), 7, stops=torch.tensor([9]), **given)
        assert found.flatten().tolist() == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("count", [64, 999])
@pytest.mark.parametrize(("last", "near"), [(False, 0), (True, 1)])
def test_many_scores(impl, count, last, near):
    check(impl, 5000, count, last=last, tie=0.0, near=near)


@pytest.mark.parametrize("count", [64, 70])
def test_few_of_many_scores(impl, count):
    """Also where the largest lie at every n/1024-th place, or nowhere there: a sample of those places misleads."""
    n, g = 8201, torch.Generator().manual_seed(6)
    x = torch.randn(6, n, generator=g)
    sampled = torch.arange(1024) * n // 1024
    x[1], x[2], x[3] = torch.arange(n), -torch.arange(n), 0
    x[2, 32:64] -= n // 2  # fewer than are looked for come before those that follow
    x[4, sampled] += 20
    x[5] += 20
    x[5, sampled] -= 20
    assert torch.equal(topk(x, count, impl=impl), topk(x, count, impl="reference"))


def check(impl, n, count, **options):
    g = torch.Generator().manual_seed(6)
    stops = torch.randint(count, n + 1, (9,), generator=g)
    for x in (
        torch.randn(2, 9, n, generator=g),
        torch.randint(-4, 4, (2, 9, n), generator=g).float(),
        torch.arange(n).float().expand(2, 9, n),
    ):
        for start, own_stops in ((0, None), (0, stops), (min(3, n - count), stops + 3)):
            given = {"start": start, "stops": own_stops, **options}
            assert torch.equal(topk(x, count, impl=impl, **given), topk(x, count, impl="reference", **given))


@pytest.mark.parametrize("near", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_max_nearby(n, near):
    scores = random(2, 3, n)
    found = max_nearby(scores, near)
    for j in range(n):
        assert torch.equal(found[..., j], scores[..., max(j - near, 0) : j + near + 1].amax(dim=-1))


@pytest.mark.parametrize("impl", ["compiled", "reference"])
@pytest.mark.parametrize("count", [5, 70])
def test_nan_is_taken_first(impl, count):
    if impl == "compiled" and (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    scores = random(40, 100)
    scores[torch.rand(40, 100, generator=torch.Generator().manual_seed(0)) < 0.02] = float("nan")
    scores[0] = float("nan")
    for row, own in zip(scores, topk(scores, count, last=True, impl=impl), strict=True):
        assert own.tolist() == sorted(set(own.tolist())) and own.min() >= 0 and own.max() < 100
        assert row[own].isnan().sum() == min(count, int(row.isnan().sum()))


def test_nan_is_seen_at_every_place(impl):
    for n in (8, 13, 40):
        scores = random(n, n).fill_diagonal_(float("nan"))
        chosen = topk(scores, 3, impl=impl)
        assert (chosen == torch.arange(n)[:, None]).any(dim=-1).all()


LIMITED = """
import mmap, resource, torch
from pathlib import Path
from longspan.kernels.topk import topk

scores = torch.zeros(1, 2**24)
topk(scores, 2, impl="compiled")
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**25,) * 2)
try:
    mmap.mmap(-1, 2**26)
    print("no limit")
except OSError:
    pass
try:
    topk(scores, 2, near=1, impl="compiled")
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process's memory cannot be limited here")
def test_missing_memory_is_an_error():
    """In a process of its own, since what others freed in a process of tests is memory that no limit refuses."""
    if (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, env=environment, timeout=300)
    if ran.stdout.startswith("no limit"):
        pytest.skip("this system grants a process more memory than its limit")
    assert ran.stdout == "no memory for topk\n", ran.stderr


def test_infinite_scores_tie(impl):
    scores = random(2, 12)
    scores[:, [7, 9]] = float("inf")
    assert topk(scores, 2, tie=0.1, impl=impl).tolist() == [[7, 9]] * 2


def test_fewer_scores_than_places_are_refused():
    if (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    with pytest.raises(ValueError, match="fewer scores than places"):
        topk(random(2, 9), 5, last=True, start=1, stops=torch.tensor([8, 4]), impl="compiled")
    for start in (5, -1):
        with pytest.raises(ValueError, match="fewer scores than places"):
            topk(random(2, 9), 5, start=start, impl="compiled")
    with pytest.raises(ValueError, match="the number of nearby scores is negative"):
        topk(random(2, 9), 5, near=-1, impl="compiled")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_scores_of_another_dtype_are_refused_before_c_reads_them(dtype):
    if (reason := cpu.unavailable_reason()) is not None:
        pytest.skip(reason)
    with pytest.raises(ValueError, match=f"scores is {dtype}"):
        compiled.topk(random(4, 64).to(dtype), 8, 0.0, False, 0, None, 0)


def test_a_named_kernel_runs_or_raises():
    with pytest.raises(ValueError, match=r"compiled cannot run here: .*; use impl='torch'"):
        topk(random(2, 9).double(), 5, impl="compiled")
    with pytest.raises(ValueError, match="flash_cpu cannot run here: this kernel has no such implementation"):
        topk(random(2, 9), 5, impl="flash_cpu")
    with pytest.raises(ValueError, match="impl must be one of auto, .*, torch, reference, not 'best'"):
        topk(random(2, 9), 5, impl="best")
