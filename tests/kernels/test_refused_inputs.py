"""Kernels in C refuse sizes, indices and positions that do not go together, and read nothing outside of a tensor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longspan.kernels import cpu
from longspan.kernels.banded import Plan, banded
from longspan.kernels.cpu import build, structs
from longspan.kernels.gathered import gathered
from support.fuzz_kernels import KERNELS, fuzz
from support.jobs import common, per_chunk, per_row

pytestmark = pytest.mark.hostile

if cpu.unavailable_reason() is not None:
    pytest.skip(str(cpu.unavailable_reason()), allow_module_level=True)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("field", "value"), [("units", 5), ("units", -1), ("positions", 50), ("positions", -1)])
def test_a_unit_or_position_outside_is_refused(rows, field, value):
    job = per_row(rows, 16, 3)
    indices = getattr(job, field).clone()
    indices[0, -1, -1, 0] = value
    with pytest.raises(ValueError, match="lies outside of the"):
        list(gathered(replace(job, **{field: indices}), "compiled"))


def test_a_position_beyond_the_table_of_a_window_is_refused_whatever_runs():
    """What a position map may get wrong: it counts further than the window has angles for."""
    job = per_row(40, 16, 3)
    far = replace(job, positions=job.positions + 50)
    for impl in ("compiled", "torch", "flash_cpu", "reference"):
        with pytest.raises((ValueError, IndexError), match="out of range|out of bounds|outside"):
            list(gathered(far, impl))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("low", "high"), [(-1, 9), (0, 91)])
def test_a_range_of_keys_outside_is_refused(rows, low, high):
    given, lows, highs = common(rows, 90), torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 90)
    lows[-1], highs[-1] = low, high
    q, keys, v, rope, scale = (given[name] for name in ("q", "keys", "v", "rope", "scale"))
    plan = Plan(90 - rows, 90, (0,), (lows,), (highs,), (lows * 0,))
    with pytest.raises(ValueError, match="a range of keys ends outside of the stored ones"):
        banded(q, [keys], v, plan, [rope.table(lows * 0)], rope, scale=scale, impl="compiled")


def test_tokens_outside_are_refused():
    job = per_chunk(20, 9, 90)
    with pytest.raises(ValueError, match="a chosen token lies outside of the stored keys"):
        list(gathered(replace(job, tokens=job.tokens + 82), "compiled"))
    with pytest.raises(ValueError, match="a run of chosen tokens ends outside of them"):
        list(gathered(replace(per_chunk(20, 9, 90, runs=2), ends=torch.tensor([[[3, 10]]])), "compiled"))


@pytest.mark.parametrize("cut", ["q", "keys", "v", "units", "positions"])
def test_tensors_that_are_too_short_are_refused(cut):
    job = per_row(40, 16, 3)
    with pytest.raises((ValueError, RuntimeError)):
        list(gathered(replace(job, **{cut: getattr(job, cut)[:, :, :-17]}), "compiled"))


def test_what_is_spoilt_at_random_is_refused_or_runs():
    """Without sanitizers this finds what ends the process or raises something else; see the long test below."""
    found = fuzz(seed=7, rounds=20)
    assert all(count["whole"] == 2 for count in found.values())
    assert sum(count["refused"] for count in found.values()) > 0.5 * 18 * len(KERNELS)


def test_structures_have_the_compilers_sizes():
    assert structs.ALL["Job"].size == 224 and list(structs.ALL["Table"].fields) == ["cos", "sin", "rows"]
    compared = re.findall(r"^SAME\((\w+)\);$", (build.SOURCES / "layout.c").read_text(), re.MULTILINE)
    assert sorted(compared) == sorted(structs.ALL)


def test_another_packing_is_another_library(monkeypatch):
    before = build.library_name(("cc",))
    monkeypatch.setattr(structs.ALL["TopK"], "size", structs.ALL["TopK"].size + 8)
    assert build.library_name(("cc",)) != before


def test_a_field_is_packed_by_its_name():
    table = structs.ALL["Table"]
    assert table.pack(rows=3, sin=2, cos=1) == table.pack(cos=1, sin=2, rows=3)
    with pytest.raises(TypeError, match=r"Table.pack\(\) missing .* 'rows'"):
        table.pack(cos=1, sin=2)
    with pytest.raises(TypeError, match=r"Table.pack\(\) got an unexpected .* 'row'"):
        table.pack(cos=1, sin=2, rows=3, row=3)
    with pytest.raises(TypeError, match=r"Keys.step has 3 values, not 2"):
        structs.ALL["Keys"].pack(data=0, step=(1, 2), count=3)
    with pytest.raises(TypeError, match="Table begins with"):
        table.first("sin", "cos")


def runtime(name: str) -> str | None:
    """The file of a sanitizer's runtime, if gcc has it."""
    if shutil.which("gcc") is None:
        return None
    said = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return said if os.path.isabs(said) else None


def test_powers_far_below_zero_overflow_nothing(tmp_path):
    """They are 0, whatever is computed on the way, and that is defined."""
    if runtime("libubsan.so") is None:
        pytest.skip("gcc has no UBSan here")
    program = tmp_path / "powers"
    source = """
        #include "vectors.h"
        int main(void) {
            float from[LANES] = {0, -1, -126, -127, -150, -1000, -1e30f, -INFINITY}, to[LANES];
            store(to, exp2_of(load(from, FP32)));
            for (int n = 3; n < LANES; n++) if (to[n] != 0) return 1;
            return to[0] != 1 || to[1] != 0.5f || to[2] != 0x1p-126f;
        }
    """
    flags = ["-std=gnu11", "-O1", "-w", "-fsanitize=undefined", "-fno-sanitize-recover=all", f"-I{build.SOURCES}"]
    subprocess.run(["gcc", *flags, "-x", "c", "-", "-o", str(program)], input=source, check=True, text=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_nothing_is_read_or_written_outside(tmp_path):
    """Under AddressSanitizer and UBSan, which end the process at the first access out of bounds."""
    runtimes = [runtime("libasan.so"), runtime("libubsan.so")]
    if None in runtimes:
        pytest.skip("gcc has no AddressSanitizer here")
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, runtimes)),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "XDG_CACHE_HOME": str(tmp_path),
        "CC": "gcc",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    script = Path(__file__).parents[1] / "support" / "fuzz_kernels.py"
    done = subprocess.run(
        [sys.executable, str(script), "11", "100", "--sanitize"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert len(found) == len(KERNELS) and all(count["whole"] == 10 for count in found.values())
