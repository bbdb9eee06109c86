"""Kernels in C called by several threads at once, under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from longspan.kernels.cpu.build import SOURCES

pytestmark = pytest.mark.hostile


@pytest.mark.long
def test_threads_share_nothing_that_they_write(tmp_path):
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc here")
    program, driver = tmp_path / "threads", Path(__file__).parents[1] / "support" / "threads.c"
    flags = ["-std=gnu11", "-O1", "-g", "-march=native", "-fsanitize=thread", "-pthread", "-fno-strict-aliasing"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    made = subprocess.run(
        [gcc, *flags, f"-I{SOURCES}", "-o", str(program), str(driver), *sources, "-lm"], capture_output=True, text=True
    )
    if "cannot find" in made.stderr and "tsan" in made.stderr:
        pytest.skip("gcc has no ThreadSanitizer here")
    assert made.returncode == 0, made.stderr[-2000:]
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert "unexpected memory mapping" not in done.stderr, "the system's address layout rules ThreadSanitizer out"
    assert (done.returncode, done.stdout) == (0, "4 callers agree\n"), done.stderr[-4000:]
    assert "WARNING" not in done.stderr
