"""The first command works for everybody: what is pinned and what is promised installs on every system and Python.

uv resolves from the metadata that the package index serves, so no torch is fetched. The index is the one that pip is
configured to use. Where none can be reached the tests are left out and say so, except in CI, where they fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.hostile

ROOT = Path(__file__).parents[2]
BODY = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = BODY["project"], BODY["dependency-groups"]
IN_EVAL = tomllib.loads((ROOT / "eval" / "pyproject.toml").read_text())["project"]
# vLLM fixes the versions of many packages, torch among them: its releases are held by tests/vllm/requirements*.txt.
HELD_ELSEWHERE = {"vllm"}
EXTRAS = tuple(name for name in PROJECT["optional-dependencies"] if name not in HELD_ELSEWHERE)
OURS = {"longspan", "longspan-eval"}

CONSTRAINTS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
PINNED = {canonicalize_name(each.name): s.version for each in CONSTRAINTS for s in each.specifier}

NEWEST_TRANSFORMERS = "5.24.0"  # the pinned one is older, since kvpress cannot run on it
# Models are given a cache, fill it, crop it and go on: what transformers changes most.
AT_THE_ENDS = [
    f"tests/{name}.py" for name in ("hf/test_argument", "hf/test_cache", "hf/test_families", "hf/test_generate")
]
AT_THE_ENDS += ["tests/documents/test_asking.py", "tests/serve/test_chat.py"]

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux": "x86_64-manylinux_2_28",
    "Linux on Arm": "aarch64-manylinux_2_28",
    "macOS": "aarch64-apple-darwin",
    "Windows": "x86_64-pc-windows-msvc",
}
# These come as source alone, ours from this checkout; all are pure Python, which pip builds anywhere. Of all else there
# must be a wheel.
SOURCE_ONLY = ("fire", "longspan", "longspan-eval", "rouge-score", "sqlitedict", "word2number")


@cache
def pip_settings() -> str:
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    return asked.stdout


def pip_setting(name: str) -> str | None:
    """What pip is configured with, by file or environment."""
    found = dict(re.findall(rf"^(\S+)\.{name}='(.*)'$", pip_settings(), re.MULTILINE))
    return found.get(":env:", found.get("install", found.get("global")))


def uv_environment() -> dict[str, str]:
    """uv does not read pip's configuration; it is handed the index and the certificates, off the command line."""
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0", "NO_COLOR": "1"}
    for variable, setting in (("UV_DEFAULT_INDEX", "index-url"), ("SSL_CERT_FILE", "cert")):
        value = pip_setting(setting)
        if value and variable not in environment:
            environment[variable] = value
    return environment


def uv(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    from uv import find_uv_bin

    # Downloading an interpreter would only serve to build sources with it; the one that runs this does as well.
    command = [find_uv_bin(), "--no-config", "pip", *arguments, "--quiet"]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=uv_environment(), cwd=ROOT)


def resolve(*arguments: str, python: str, platform: str) -> subprocess.CompletedProcess[str]:
    sources = [word for name in SOURCE_ONLY for word in ("--no-binary", name)]
    where = ("--python-version", python, "--python-platform", platform)
    how = (
        "--python",
        sys.executable,
        "--no-python-downloads",
        "--only-binary",
        ":all:",
        "--no-header",
        "--no-annotate",
    )
    return uv("compile", *where, *how, *sources, *arguments)


def pins(resolved: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert resolved.returncode == 0, resolved.stderr
    return dict(line.split("==") for line in resolved.stdout.split() if "==" in line)


def of_extras(*names: str) -> list[str]:
    """The options of extras and of groups."""
    return [word for name in names for word in ("--group" if name in GROUPS else "--extra", name)]


def floors(requirements: list[str]) -> dict[str, str]:
    """The lowest version that each of these allows."""
    asked = map(Requirement, requirements)
    return {canonicalize_name(each.name): s.version for each in asked for s in each.specifier if s.operator == ">="}


@pytest.fixture(scope="session")
def index() -> None:
    """A package index that answers."""
    asked = uv("compile", "--no-deps", "--no-cache", "-", stdin="typer")
    if asked.returncode != 0:
        unreachable = re.search("Failed to fetch|error sending request|network was disabled", asked.stderr)
        if os.environ.get("CI") or not unreachable:
            pytest.fail(f"uv finds no package: {asked.stderr}")
        pytest.skip(f"the package index cannot be reached: {asked.stderr.strip().splitlines()[-1].strip()}")


def test_one_python_is_promised_everywhere():
    """pyproject.toml, its classifiers, mypy, the documents and `make` say the same."""
    lowest = PYTHONS[0]
    assert PROJECT["requires-python"] == f">={lowest}" and BODY["tool"]["mypy"]["python_version"] == lowest
    assert tuple(c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c) == PYTHONS
    assert "target-version" not in BODY["tool"]["ruff"], "ruff takes it from requires-python"
    for name in ("Makefile", "README.md"):
        named = re.findall(r"Python (3\.\d+) or later", (ROOT / name).read_text())
        assert named and set(named) == {lowest}, name


def test_every_constraint_is_one_version_and_what_pyproject_allows():
    names = [canonicalize_name(each.name) for each in CONSTRAINTS]
    assert names == sorted(set(names))
    assert all([s.operator for s in each.specifier] == ["=="] for each in CONSTRAINTS)
    for project in (PROJECT, IN_EVAL):
        extras = [each for name, each in project["optional-dependencies"].items() if name not in HELD_ELSEWHERE]
        extras += GROUPS.values() if project is PROJECT else []
        for each in map(Requirement, [*project["dependencies"], *chain.from_iterable(extras)]):
            assert each.name in OURS or PINNED[canonicalize_name(each.name)] in each.specifier, each


@pytest.mark.parametrize("name", ["make", "constraints"])
def test_no_index_is_named(name):
    """Which index serves the packages is everybody's own configuration."""
    text = (ROOT / {"make": "Makefile", "constraints": "constraints.txt"}[name]).read_text()
    assert "://" not in text and "index-url" not in text


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_the_constraints_hold_together(index, platform, python):
    """Every extra and group at once, so any few of them: at the pinned versions, and with a wheel for this Python."""
    everything = ("pyproject.toml", *of_extras(*EXTRAS, *GROUPS), "-c", "constraints.txt")
    found = pins(resolve(*everything, python=python, platform=platform))
    assert found["torch"] == PINNED["torch"] and found["transformers"] == PINNED["transformers"]
    assert ("triton" in found) == ("linux" in platform)


@pytest.mark.long
@pytest.mark.parametrize("python", [PYTHONS[0], PYTHONS[-1]])
@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_without_constraints_it_installs(index, platform, python):
    """What a user without the repository gets: the newest of everything."""
    found = pins(resolve("pyproject.toml", python=python, platform=platform))
    assert found.keys() >= {"torch", "transformers", "safetensors", "rich", "typer"}


@pytest.mark.long
@pytest.mark.parametrize("extra", ["", *EXTRAS, *GROUPS])
def test_the_lowest_versions_hold_together(index, extra):
    """Nothing that is promised is ruled out by the rest: a resolver that looks for the lowest versions finds those."""
    chosen = of_extras(extra) if extra else []
    asked = [*PROJECT["dependencies"], *{**PROJECT["optional-dependencies"], **GROUPS}.get(extra, [])]
    promised = floors([each for each in asked if Requirement(each).name not in OURS])
    lowest = ("pyproject.toml", *chosen, "--resolution", "lowest-direct")
    found = pins(resolve(*lowest, python=PYTHONS[0], platform=PLATFORMS["Linux"]))
    ruled_out = {name for name, floor in promised.items() if found[name] not in SpecifierSet(f"=={floor}.*")}
    assert {name: (promised[name], found[name]) for name in ruled_out} == {}


def lowest() -> dict[str, str]:
    """Everything but torch at the lowest version that is promised."""
    python = ".".join(map(str, sys.version_info[:2]))
    given = ("pyproject.toml", "--resolution", "lowest-direct")
    found = pins(resolve(*given, python=python, platform=PLATFORMS["Linux"]))
    return {name: version for name, version in found.items() if not name.startswith(("torch", "triton", "nvidia"))}


@pytest.mark.long
@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_both_ends_of_the_ranges_run(index, tmp_path, end):
    """In front of what is installed here."""
    ours = lowest() if end == "lowest" else {"transformers": NEWEST_TRANSFORMERS}
    folder = tmp_path / end
    into = ("--no-deps", "--python", sys.executable, "--target", str(folder))
    got = uv("install", *into, *(f"{name}=={version}" for name, version in ours.items()))
    assert got.returncode == 0, got.stderr

    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}{os.pathsep}{ROOT / 'eval' / 'src'}",
        "OMP_NUM_THREADS": "1",
    }

    def run(*arguments: str, cwd: Path = tmp_path) -> str:
        ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=cwd)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
        return ran.stdout

    versions = run("-c", "import transformers, typer; print(transformers.__version__, typer.__version__)").split()
    assert versions == [ours["transformers"], ours.get("typer", PINNED["typer"])]
    command = ("-c", "import sys; from longspan.cli import main; sys.exit(main())")
    for asked in (["--help"], ["eval", "--help"], ["methods"]):
        assert run(*command, *asked)
    run(*command, "demo", "--methods", "stock,dca", "--lengths", "1x,2x", "--prompts", "1", "--out", "demo")
    assert (tmp_path / "demo" / "results.json").exists()
    run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *AT_THE_ENDS, cwd=ROOT)
