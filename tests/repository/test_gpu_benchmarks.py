"""The benchmarks of a GPU, without one: what they refuse, their models and recorded contestants."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from longspan.methods import LongHeads
from longspan.methods.dca import DCA

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import common  # noqa: E402
import contestants  # noqa: E402
import gpu  # noqa: E402
import gpu_models  # noqa: E402
import memory  # noqa: E402
import profiler  # noqa: E402


def test_without_cuda_the_gpu_benchmark_refuses(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: torch ") and "make bench" in said


@pytest.mark.parametrize(("gib", "layers"), [(80, 20), (4, 1), (1000, 32)])
def test_layers_of_a_million_tokens(gib, layers):
    # 8 key-value heads of 128 in bf16: 4 KiB a token, 4 GiB a layer.
    assert gpu_models.layers_that_fit(gpu.LLAMA_3, 1 << 20, gib) == layers
    with pytest.raises(ValueError, match="4.00 GiB, and 3 are given"):
        gpu_models.layers_that_fit(gpu.LLAMA_3, 1 << 20, 3)


def test_the_gpu_script_reads_and_goes_on():
    """Stock and extended, in each tier, from a prefill that is whole, cut short or left out."""
    shape = contestants.Shape(heads=2, kv_heads=1, width=16, window=64)
    runs = [gpu_models.Run(name, 300, 128) for name in ("stock", "eager", "dca", "longheads")]
    runs += [gpu_models.Run("esa", 300, 128, seconds=0), gpu_models.Run("longheads", 300, tier="host", filled=True)]
    rows = list(gpu_models.rows(gpu_models.config(shape, 2, 32, 32, 64), runs, "cpu", 2))
    assert [row["method"] for row in rows] == [run.method for run in runs]
    assert [row.get("read") for row in rows] == [300, 300, 300, 300, 128, 300]
    assert all(float(row["seconds_per_token"]) > 0 for row in rows)
    assert [row["prefill_seconds"] == "" for row in rows] == [False] * 5 + [True]
    assert ["a GPU" in row.get("no_graph", "") or "kv_tier" in row.get("no_graph", "") for row in rows] == (
        [False] * 2 + [True] * 4
    )


def test_a_run_that_fails_says_why(monkeypatch):
    def measured(model, run, device, steps):
        if run.method == "dca":
            raise torch.OutOfMemoryError("64 GiB")
        return {"read": run.length}

    monkeypatch.setattr(gpu_models, "measured", measured)
    shape = contestants.Shape(heads=2, kv_heads=1, width=16, window=64)
    runs = [gpu_models.Run(name, 300) for name in ("full", "dca", "esa")]
    rows = list(gpu_models.rows(gpu_models.config(shape, 1, 32, 32, 64), runs, "cpu", 2))
    assert [(row.get("read"), row.get("failed")) for row in rows] == [(300, None), (None, "64 GiB"), (300, None)]


def test_an_interrupted_gpu_run_leaves_its_rows(monkeypatch, tmp_path):
    def rows(made, runs, *given):
        for run in runs:
            if run.length > 100_000:
                raise KeyboardInterrupt
            yield {"method": run.method, "tier": run.tier, "length": run.length}

    monkeypatch.setattr(gpu, "rows", rows)
    with pytest.raises(KeyboardInterrupt):
        gpu.kept(Console(file=io.StringIO()), gpu.models, tmp_path / "models.csv", "a GPU")
    found = common.load(tmp_path / "models.csv")
    assert [row["method"] for row in found[:2]] == ["stock", "full"] and {row["device"] for row in found} == {"a GPU"}
    assert {row["length"] for row in found} == {"32768"}
    million = gpu.kept(Console(file=io.StringIO()), lambda: gpu.million(80, 1 << 16), tmp_path / "million.csv", "a GPU")
    assert [row["tier"] for row in million] == ["host", "host", "device", "device"]


def test_a_gpu_has_the_peak_of_each_contestant_in_one_process(monkeypatch):
    used = {"now": 100, "most": 100}
    # There may be no GPU.
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: used["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: used["most"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: used.update(most=used["now"]))
    peaks = memory.DevicePeaks("cuda")
    peaks.filled("full", lambda: used.update(now=170, most=500))
    for name, most in (("full", 180), ("flash", 175), ("full", 190)):
        peaks.begin()
        used["most"] = most
        peaks.ran(name)
    assert peaks.peaks == {"full": 70 + 20, "flash": 5}
    (peaks := memory.DevicePeaks("cpu")).begin()
    peaks.ran("full")
    assert peaks.peaks == {}


def test_profiles_are_of_contestants():
    for part in profiler.on_a_gpu():
        assert contestants.make(part.phase, part.method, contestants.Shape(), torch.float32).name == part.method


@pytest.mark.parametrize("method", [DCA(), LongHeads(chunk_length=8, num_chunks=6)], ids=lambda method: method.name)
def test_recorded_contestants_give_what_the_others_do(method, monkeypatch):
    """Over the end of a chunk; without a GPU a tape stands in for the graph."""
    pytest.importorskip("triton")
    from support import tape

    # There are no graphs on a CPU.
    monkeypatch.setattr(contestants, "record", tape.record)
    shape, outs = contestants.Shape(heads=4, kv_heads=2, width=16, layers=2, window=64), []
    with torch.inference_mode():
        for kind in (contestants.Longspan, contestants.Recorded):
            one = kind("one", shape, torch.float32, method)
            one.fill(204)
            outs.append(torch.stack([one(*shape.qkv(1, torch.float32, seed=n)).clone() for n in range(6)]))
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)
