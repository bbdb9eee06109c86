"""Steps for a GPU that is lent for minutes, in order of value: ``gpu.py --minutes`` runs them.

A step is a command with a limit of its own. A step that does not fit into the minutes that are left is not begun, and
one that runs past its limit is stopped with all its processes; its results by then stay. ``steps.json`` in the folder
of results, written after each step, says how each ended and which remain; ``STEP.log`` has the output. Nothing has to
be installed if torch with CUDA, Triton, transformers, safetensors, typer, rich, pytest and hypothesis are there: the
sources are put on the path. For kvpress beside the others carry the wheels of ``WHEELS``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Not part of images for PyTorch; with `pip install --no-deps`, as kvpress asks for an older transformers.
WHEELS = ("kvpress", "cachetools", "datasets", "dill", "fire", "multiprocess", "termcolor")
_ROWS = "stock,yarn,dca,self-extend,longheads,longheads:score=bounds,esa,infllm,streaming-llm"
# `longspan eval` is found by the metadata of installed packages, and here none is installed.
_EVAL = "import typer; from longspan_eval.cli.eval import evaluate; app = typer.Typer(); app.command()(evaluate); app()"
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "8", "--maxfail", "20")
_TRITON = ("triton", "triton_gathered", "triton_topk", "triton_rotate", "triton_query_chunks", "scores")
_KERNELS = tuple(f"tests/kernels/test_{name}.py" for name in _TRITON)


@dataclass(frozen=True)
class Step:
    """One command of Python.

    Attributes:
        arguments: of the interpreter; ``{out}`` stands for the folder of results.
        minutes: the most that it may take.
    """

    arguments: tuple[str, ...]
    minutes: float


STEPS: dict[str, Step] = {
    # Methods, kernels and graphs against the CPU or the fp64 oracle; the smallest part first: it shows a broken image.
    "smoke": Step(("-m", "pytest", "-q", "-x", "tests/kernels/test_triton.py", "-k", "whole_methods"), 2),
    "correct": Step((*_PYTEST, "tests/hf/test_on_a_gpu.py", *_KERNELS, "tests/hf/test_graphs.py"), 6),
    "profile": Step(("benchmarks/gpu.py", "--what", "profile", "--out", "{out}"), 4),
    "layers": Step(("benchmarks/gpu.py", "--what", "layers", "--out", "{out}"), 8),
    "models": Step(("benchmarks/gpu.py", "--what", "models", "--out", "{out}"), 9),
    "million": Step(("benchmarks/gpu.py", "--what", "million", "--out", "{out}"), 7),
    # The bundled model in bf16; each length takes seconds, so a stop leaves the short ones.
    "passkeys": Step(
        (
            *("-c", _EVAL, "passkey,passkey-prose", "--model", "bundled", "--methods", _ROWS, "--quiet"),
            *("--lengths", "1x,2x,4x,8x,16x,64x", "--samples", "50", "--dtype", "bfloat16", "--device", "cuda"),
            *("--out", "{out}/passkeys"),
        ),
        9,
    ),
}


def run_step(step: Step, out: Path, log: Path, seconds: float) -> dict[str, object]:
    """Run a step for at most ``seconds``; how it ended: ``rc``, or None if it was stopped, and its seconds."""
    paths = [str(ROOT / "src"), str(ROOT / "eval" / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, *(part.replace("{out}", str(out)) for part in step.arguments)]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            rc: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            rc = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return {"rc": rc, "seconds": round(time.monotonic() - began, 1)}


def run_steps(names: Sequence[str], steps: Mapping[str, Step], minutes: float, out: Path) -> int:
    """Run steps in their order while they fit into ``minutes``; 0 if each that was begun succeeded.

    A step fits if half of its limit is left, and is stopped at the end of the minutes if not at its own.
    """
    out.mkdir(parents=True, exist_ok=True)
    end, done, left = time.monotonic() + 60 * minutes, {}, list(names)
    for name in names:
        remaining = end - time.monotonic()
        if remaining < 30 * steps[name].minutes:
            break
        log = out / f"{name}.log"
        done[name] = run_step(steps[name], out, log, min(60 * steps[name].minutes, remaining))
        left.remove(name)
        (out / "steps.json").write_text(json.dumps({"done": done, "left": left}, indent=1) + "\n")
        tail = log.read_text(errors="replace").splitlines()[-12:]
        print(f"== {name}: {done[name]}", *tail, sep="\n", flush=True)
    print(f"left: {', '.join(left) or 'nothing'}")
    return 0 if all(step["rc"] == 0 for step in done.values()) else 1
