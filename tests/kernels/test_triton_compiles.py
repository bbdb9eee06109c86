"""What the interpreter runs also compiles, for GPUs that need not be here, and fits their shared memory."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import longspan

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is there on Linux alone")

KERNELS = Path(longspan.__file__).parent / "kernels"
SCRIPT = Path(__file__).parents[1] / "support" / "compile_triton.py"


def compiled(*arguments):
    """Lines of the script, which runs by itself: a process that interprets kernels does not compile any."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def check(made):
    too_large = [one for one in made if one["shared"] > one["limit"]]
    assert made and not too_large, too_large


def test_one_of_each_kernel():
    check(compiled())


@pytest.mark.long
@pytest.mark.parametrize("generation", ["80", "89", "90"])
def test_head_sizes_and_dtypes(generation):
    check(compiled(generation))


def test_no_kernel_chains_and_or_or():
    """The oldest Triton that is supported, 3.2, refuses ``a and b and c``, and compiles ``a and (b and c)``."""
    files = [*KERNELS.rglob("triton_jit*.py"), KERNELS / "gpu" / "primitives.py"]
    chains = [
        f"{file.name}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.BoolOp) and len(node.values) > 2
    ]
    assert len(files) > 4 and not chains
