"""The benchmarks' runs, gates, processes and refusals."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from rich.console import Console

from longspan.methods.dca import DCA
from support.benchmarks import CHOOSING, SMALL, ours

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import common  # noqa: E402
import contestants  # noqa: E402
import floors  # noqa: E402
import gates  # noqa: E402
import memory  # noqa: E402
import suite  # noqa: E402

# Runs


def test_turns_begin_with_another_one_every_round():
    order = []
    ticks = iter(range(1000))
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = common.take_turns(runs, 3, lambda: next(ticks), after=lambda name: order.append(name.upper()))
    assert "".join(order) == "aAbBcC" + "bBcCaA" + "cCaAbB"
    assert times == [dict.fromkeys("abc", 1)] * 3


def test_a_ratio_is_the_median_of_the_ratios_within_a_round():
    times = [{"x": 1, "y": 2}, {"x": 30, "y": 10}, {"x": 2, "y": 2}]
    assert common.ratio(times, "x", "y") == 1.0


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "new" / "rows.csv"
    rows = [{"method": "a, b", "seconds": "0.1"}, {"method": "dca", "seconds": "0.2", "peak": 3}]
    common.save(path, rows, 2, kvpress="none")
    back = common.load(path)
    assert [r["method"] for r in back] == ["a, b", "dca"] and [r["peak"] for r in back] == ["", "3"]
    assert all(
        (r["torch"], r["threads"], r["clock"], r["device"]) == (version("torch"), "2", "wall", "cpu") for r in back
    )
    with pytest.raises(ValueError, match="nothing was measured"):
        common.save(path, [], 2)
    assert common.load(path) == back


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("stock", "longheads") else pytest.mark.long)
        for name in contestants.PREFILL
        if name != "kvpress"
    ],
)
@torch.inference_mode()
def test_a_small_case_runs_for_every_contestant(name, monkeypatch):
    case = suite.Case("prefill", "fp32", 96, (name,), 1, SMALL)
    monkeypatch.setattr(contestants, "PREFILL_WINDOW", 64)
    monkeypatch.setattr(suite, "make", small_make)
    (found,) = suite.timed(case, torch.get_num_threads())
    assert found["method"] == name and float(found["seconds"]) > 0
    assert found.get(f"over_{name}", "1.0000") == "1.0000"
    with_floor = suite.with_floor(found, floors.Rates(1e9, 1e9), SMALL)
    assert float(with_floor["over_floor"]) * float(with_floor["of_floor"]) == pytest.approx(1, rel=0.2)


def small_make(phase, name, shape, dtype, device="cpu"):
    if name in ("flash", "stock", "full", "dca"):
        return contestants.make(phase, name, shape, dtype, device)
    method = CHOOSING[name.replace("-", ", ")]
    return contestants.Longspan(name, shape, dtype, method, device=device)


@torch.inference_mode()
def test_decoding_takes_turns_with_a_shorter_length(monkeypatch):
    monkeypatch.setattr(suite, "make", small_make)
    monkeypatch.setattr(suite, "SHORT", 80)
    case = suite.Case("decode", "fp32", 200, ("longheads", "esa"), 2, SMALL, against_short=True)
    found = suite.timed(case, torch.get_num_threads())
    assert [(r["method"], r["length"]) for r in found] == [("longheads", 200), ("esa", 200)]
    assert all(float(r["over_short"]) > 0 for r in found)


def test_filling_is_what_appending_would_have_held():
    one = ours(CHOOSING["longheads, bounds"])
    one.fill(100)
    assert [store.length for store in one.stores] == [100] * 3
    assert len({id(store.index) for store in one.stores}) == 3
    filled = [store.index.summaries(0) for store in one.stores]
    assert filled[0].shape[1] == 2 * (100 // 8)
    assert all(torch.equal(x, filled[0]) for x in filled)
    one(*SMALL.qkv(5, torch.float32))
    assert [store.index.tail.stop for store in one.stores] == [105] * 3
    _q, k, v = contestants.random_block(SMALL, torch.float32, "cpu")
    assert torch.equal(one.stores[0].values[:, :, :100], v[:, :, :100])
    bounds = one.stores[0].index.entries[0, :, :2]
    assert torch.equal(bounds, torch.stack((k[0, :, :8].amin(1), k[0, :, :8].amax(1)), 1)[..., one.rope.order])


def test_an_unknown_contestant_is_named():
    with pytest.raises(ValueError, match="'slowformer'; there are flash, stock"):
        contestants.make("decode", "slowformer", SMALL, torch.float32)


# Gates


@pytest.fixture
def small_gate(monkeypatch):
    monkeypatch.setattr(gates, "TOKENS", 110)
    monkeypatch.setattr(gates, "CUT", 71)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_is_green(small_gate, dtype):
    with torch.inference_mode():
        assert gates.gate({"prefill": contestants.PREFILL, "decode": contestants.DECODE}, dtype) == {}


@pytest.mark.parametrize("spoilt", [float("nan"), 0.01])
def test_the_gate_is_red_for_a_wrong_kernel_and_for_that_one_alone(small_gate, monkeypatch, spoilt):
    own = contestants.Longspan.__call__

    def wrong(self, q, k, v):
        out = own(self, q, k, v)
        return out + spoilt if isinstance(self.method, DCA) else out

    monkeypatch.setattr(contestants.Longspan, "__call__", wrong)
    with torch.inference_mode():
        assert list(gates.gate({"decode": ("stock", "full", "dca", "longheads-mean")}, torch.float32)) == ["dca"]


def test_what_is_wrong_or_missing_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        suite, "alone", lambda work, methods, dtype, *more, **kw: {"dca": "off"} if dtype == "bf16" else {}
    )
    cases = [suite.Case("decode", dtype, 9, ("dca", "kvpress", "esa"), 1, SMALL) for dtype in ("fp32", "bf16")]
    cases.append(suite.Case("decode", "bf16", 9, ("dca",), 1, SMALL))
    said = common_console()
    kept = suite.right(said, cases, "kvpress is not installed")
    assert [(c.dtype, c.methods) for c in kept] == [("fp32", ("dca", "esa")), ("bf16", ("esa",))]
    assert "dca: wrong, so it is not timed" in said.export_text()


def common_console():

    return Console(record=True, width=200, file=open("/dev/null", "w"))


# Processes and refusals


def allocates(size):
    with memory.Peaks() as peaks:
        before = memory.resident()
        x = bytearray(size)
        x[::4096] = b"x" * len(x[::4096])
        peaks.look()
    return peaks.peaks["RssAnon"] - before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_peak_memory_is_what_was_touched():
    assert 60 << 20 < allocates(64 << 20) < 100 << 20


def test_a_model_without_kvpress_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(contestants, "version", lambda name: None)
    assert "make bench-peers" in contestants.why_no_kvpress()
