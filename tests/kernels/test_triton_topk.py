"""The Triton kernel of top-k keeps to its contract, interpreted on a CPU or on the GPU that is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.kernels.gpu import tiles
from longspan.kernels.topk import TOPK, topk, triton

pytest.importorskip("triton")

from longspan.kernels.topk import triton_jit

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = "cpu" if tiles.interpreting() else "cuda"


def random(*shape, seed=6):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(scores, count, **options):
    found = topk(scores.to(DEVICE), count, impl="triton", **options)
    assert found.device.type == DEVICE
    assert torch.equal(found.cpu(), topk(scores, count, impl="reference", **options))


@pytest.mark.parametrize("tie", [0.0, 0.05])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("near", [0, 1, 4])
def test_the_reference(near, last, tie):
    """Rows of one block and of several; scores of which none or many are equal; stops, also beyond the last."""
    options = {"near": near, "last": last, "tie": tie}
    check(random(1, 7), 7, **options)
    scores = random(3, 100)
    scores[1:].mul_(2).round_()
    check(scores[:2], 30, **options)
    check(scores, 28, start=2, stops=torch.tensor([30, 100, 105]), **options)


@pytest.mark.parametrize("near", [0, 1])
def test_many_scores(near):
    check(random(1, 1500), 999, near=near)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -3e38, float("inf"), float("-inf")])
def test_numbers_at_the_ends_of_their_range(value):
    scores = random(2, 20)
    scores[:, 3::4] = value
    for last in (False, True):
        for count in (2, 11):
            check(scores, count, last=last)


@pytest.mark.parametrize("near", [0, 1])
@pytest.mark.parametrize("count", [5, 70])
def test_nan_is_taken_first(count, near):
    scores = random(4, 100)
    scores[torch.rand(4, 100, generator=torch.Generator().manual_seed(0)) < 0.03] = float("nan")
    scores[0] = float("nan")
    scores[1, 40:] = -scores[1, 40:]  # a NaN has a sign as well
    for last in (False, True):
        check(scores, count, last=last, near=near, tie=0.1)


def test_stops_on_the_device():
    stops, scores = torch.tensor([40, 100, 71]), random(2, 3, 100)
    found = topk(scores.to(DEVICE), 30, stops=stops.to(DEVICE), near=1, impl="triton")
    assert torch.equal(found.cpu(), topk(scores, 30, stops=stops, near=1, impl="reference"))


def test_stops_on_a_gpu_copy_nothing(monkeypatch):
    copied, launched = [], []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name, kwargs = func.overloadpacket.__name__, kwargs or {}
            here = name == "_local_scalar_dense" and args[0].device.type == "cpu"
            if name in ("_to_copy", "copy_", "_local_scalar_dense") and not here:
                copied.append(name)
            return func(*args, **kwargs)

    class Launched:
        def __getitem__(self, grid):
            return lambda *args, **constants: launched.append(grid)

    # There may be no GPU: tensors without memory stand for those on it, and nothing runs.
    monkeypatch.setattr(triton_jit, "topk", Launched())
    monkeypatch.setattr(triton_jit, "nearby", Launched())
    scores, stops = torch.empty(2, 3, 100, device="meta"), torch.empty(3, device="meta", dtype=torch.int64)
    with Watched():
        triton.topk(scores, 30, 0.0, False, 0, stops, 1)
        triton.topk(scores[:, :1], 30, 0.0, False, 0, torch.tensor([50]), 0)
    assert not copied and len(launched) == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_torch_takes_stops_on_the_device_without_a_look_at_them(rows):
    """Which it runs instead on few long rows; on ``meta`` a look is an error."""
    scores, stops = torch.empty(2, rows, 50, device="meta"), torch.empty(rows, device="meta", dtype=torch.int64)
    assert topk(scores, 5, stops=stops, near=1, impl="torch").shape == (2, rows, 5)


def test_scores_that_lie_apart():
    check(random(100, 2, 3).permute(1, 2, 0), 20, near=1)
    check(random(2, 3, 100)[:, :, 10:90], 20)
    check(random(30), 4)


def test_nothing_to_choose():
    for shape, count in (((2, 0), 0), ((0, 3, 9), 2), ((2, 9), 0)):
        assert topk(torch.empty(*shape, device=DEVICE), count, impl="triton").shape == (*shape[:-1], count)


def test_fewer_scores_than_places_are_refused():
    scores = random(2, 9).to(DEVICE)
    for options in ({"start": 1, "stops": torch.tensor([8, 4])}, {"start": 5}, {"start": -1}):
        with pytest.raises(ValueError, match="there are fewer scores than places: -?.* from place -?.* on, and not 5"):
            topk(scores, 5, impl="triton", **options)
    with pytest.raises(ValueError, match="the number of nearby scores is negative: -1"):
        topk(scores, 5, near=-1, impl="triton")
    with pytest.raises(ValueError, match=r"stops are \[3\] and not \[2\]"):
        topk(scores, 5, stops=torch.tensor([8, 8, 8]), impl="triton")


def test_a_row_with_fewer_scores_than_places_has_places_of_its_own():
    """Stops on a GPU are not looked at, and an index outside of the scores would be read by what comes next."""
    scores, stops = random(2, 60).to(DEVICE), torch.tensor([2, 60], device=DEVICE)
    chosen = torch.full((2, 5), -1, device=DEVICE)
    options = {"STOPS": True, "TIE": False, "LAST": False, "BLOCK": 16}
    triton_jit.topk[(2,)](scores, stops, chosen, 2, 60, 60, 1, 5, 0.0, **options)
    assert chosen[0].tolist() == [1, 2, 3, 4, 5] and chosen[1].min() >= 1


def test_a_named_kernel_runs_or_raises():
    with pytest.raises(ValueError, match="triton cannot run here: no torch.float64; use impl='torch'"):
        topk(random(2, 9).double(), 5, impl="triton")


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 1, 1 << 18), "triton"), ((1, 1, 1 << 19), "torch"), ((8, 1 << 19), "triton"), ((32, 513, 64), "triton")],
)
def test_torch_keeps_few_long_rows(monkeypatch, shape, name):
    scores = torch.empty(shape, device="meta")
    monkeypatch.setitem(
        TOPK.implementations, "triton", replace(TOPK.implementations["triton"], unsupported=lambda _: None)
    )
    assert TOPK.choose("auto", torch.device("cuda"), scores).backend.name == name
