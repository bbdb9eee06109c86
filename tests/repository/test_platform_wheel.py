"""The platform wheel: its kernels run without a compiler, as exactly as those that are compiled here."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from longspan.kernels.cpu import levels
from support.cases import assert_within_budget

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.name != "posix" or platform.machine() not in levels.LEVELS,
        reason="there is no platform wheel for this machine",
    ),
]

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LEVELS = levels.LEVELS.get(platform.machine(), ())
RUN = [level for level in LEVELS if not level.lacks(levels.features())]
LOGITS = """
import sys, torch, longspan
from longspan.bundled import load_bundled
from longspan.kernels import cpu
model, tokenizer = load_bundled()
model = model.to(getattr(torch, sys.argv[2]))
ids = torch.randint(3, 500, (1, 1500), generator=torch.Generator().manual_seed(0))
found = {}
for method in ("dca", "longheads", "esa"):
    with longspan.extended(model, method), torch.no_grad():
        out = model(ids[:, :-8])
        steps = [out.logits[:, -256:]]
        for token in ids[:, -8:].split(1, dim=1):
            out = model(token, past_key_values=out.past_key_values)
            steps.append(out.logits)
    found[method] = torch.cat(steps, dim=1)
torch.save(found, sys.argv[1])
print(longspan.__file__, cpu.unavailable_reason() or cpu.origin(), sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The one that `make wheel` left, else one that is built here."""
    named = os.environ.get("LONGSPAN_PLATFORM_WHEEL")
    if named:
        return Path(named)
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LONGSPAN_WHEEL": "platform"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> dict[str, str]:
    """The wheel before all else that Python finds, no program on the path, and a cache that is empty."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "LONGSPAN_COMPILED")}
    cache, nothing = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("path")
    more = {"PYTHONPATH": str(site), "PATH": str(nothing), "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    return {**kept, **more}


def logits(tmp_path: Path, environment: dict[str, str], dtype: str = "float32") -> tuple[dict, str]:
    """Logits by method, and where the kernels were from, of longspan as that environment finds it."""
    to = tmp_path / "logits.pt"
    command = [sys.executable, "-c", LOGITS, str(to), dtype]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    file, origin = ran.stdout.splitlines()
    assert Path(file).is_relative_to(environment["PYTHONPATH"])
    return torch.load(to), origin


def test_its_tag_is_this_system_and_it_has_every_level_and_the_sources(wheel):
    assert re.fullmatch(r"longspan-[\d.]+-py3-none-(linux|manylinux_2_\d+|macosx_11_0)_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    built = {name for name in names if name.endswith(".so")}
    assert built == {f"longspan/kernels/cpu/built/{level.name}.so" for level in LEVELS}
    assert "longspan/kernels/cpu/src/decode.c" in names


def test_without_a_compiler_its_kernels_run_as_exactly_as_those_compiled_here(environment, tmp_path):
    found, origin = logits(tmp_path, environment)
    assert origin == f"from the wheel, for {levels.choose(platform.machine(), levels.features()).name}"
    torchs, why = logits(tmp_path, {**environment, "LONGSPAN_COMPILED": "0"})
    truth, _ = logits(tmp_path, {**environment, "LONGSPAN_COMPILED": "0"}, "float64")
    here, by = logits(tmp_path, {**environment, "LONGSPAN_COMPILED": "here", "PATH": os.environ["PATH"]})
    assert "LONGSPAN_COMPILED=0" in why and by.startswith("compiled here by ")
    for method in truth:
        assert_within_budget(found[method], torchs[method], truth[method])
        assert_within_budget(here[method], torchs[method], truth[method])


@pytest.mark.parametrize("level", RUN, ids=lambda level: level.name)
def test_each_level_keeps_to_the_contracts_of_the_kernels(environment, level, tmp_path):
    settings = {**environment, "LONGSPAN_COMPILED": level.name}
    assert logits(tmp_path, settings)[1] == f"from the wheel, for {level.name}"
    names = [f"kernels/test_{name}.py" for name in ("compiled", "compiled_many", "decode", "scores", "products")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "weights/test_packed.py", *names]
    ran = subprocess.run(command, cwd=TESTS, env=settings, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:]


@pytest.mark.parametrize("level", [x for x in LEVELS if x not in RUN], ids=lambda level: level.name)
def test_a_level_that_this_processor_does_not_run_is_refused(environment, level, tmp_path):
    _, said = logits(tmp_path, {**environment, "LONGSPAN_COMPILED": level.name})
    assert said.startswith(f"this processor does not run {level.name}: it lacks ")
