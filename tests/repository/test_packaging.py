"""What is published: the wheel and the sdist hold what they should, nothing else, and describe themselves in full."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import BytesParser
from fnmatch import fnmatch
from pathlib import Path

import pytest

import longspan
from longspan.bundled import FOLDER

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
HOME = "https://github.com/longspan/longspan"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with both; the wheel is built from the sdist, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(built):
    return next(built.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def inside(sdist: Path) -> dict[str, int]:
    """Files of an sdist, below its folder, with their sizes."""
    with tarfile.open(sdist) as archive:
        return {m.name.partition("/")[2]: m.size for m in archive.getmembers() if m.isfile()}


def of_the_package() -> set[str]:
    package = ROOT / "src" / "longspan"
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    return {f"longspan/{name}" for name in files if "__pycache__" not in name}


def test_names_and_sizes(wheel, sdist):
    assert wheel.name == f"longspan-{longspan.__version__}-py3-none-any.whl"
    assert sdist.name == f"longspan-{longspan.__version__}.tar.gz"
    model = (FOLDER / "model.safetensors").stat().st_size
    assert model < 16 * MEGABYTE
    assert wheel.stat().st_size < model + 1.9 * MEGABYTE
    assert sdist.stat().st_size < model + 3.9 * MEGABYTE


def test_the_wheel_is_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    described = f"longspan-{longspan.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(described)} == of_the_package()
    licences = {f"{described}licenses/{name}" for name in ("LICENSE", "src/longspan/bundled/heldout.LICENSE")}
    assert licences <= names
    for kind in ("py.typed", "bundled/model.safetensors", "kernels/cpu/src/decode.c", "recording/page.css"):
        assert f"longspan/{kind}" in names


def test_the_sdist_has_what_tests_and_gate_need_and_no_samples(sdist):
    files = inside(sdist)
    assert {f"src/{name}" for name in of_the_package()} <= files.keys()
    assert {"Makefile", "constraints.txt", "pyproject.toml", "SECURITY.md", "CHANGELOG.md", "LICENSE"} <= files.keys()
    assert {"hatch_build.py", "CODE_OF_CONDUCT.md"} <= files.keys()
    assert {".ci/run", ".github/workflows/test.yml", ".pre-commit-config.yaml", "CITATION.cff"} <= files.keys()
    assert {"tests/conftest.py", "benchmarks/suite.py", "training/train.py"} <= files.keys()
    assert not [name for name in files if fnmatch(Path(name).name, "samples*.jsonl*")]
    assert not [name for name in files if name.startswith("benchmarks/results/") and name.endswith(".png")]
    assert sum(size for name, size in files.items() if name.startswith("benchmarks/")) < 1.25 * MEGABYTE


def test_the_sdist_has_nothing_that_was_built_here(sdist):
    files = inside(sdist)
    built = re.compile(r"(^|/)(\.venv|__pycache__|build|dist|\.\w+_cache|\.git|longspan-demo)/|\.(so|dylib|pyc)$")
    assert [name for name in files if built.search(name)] == []


def test_the_metadata_says_where_to_go(metadata):
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert urls.keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls["Homepage"] == HOME and all(url.startswith(HOME) for url in urls.values() if "github.io" not in url)
    assert metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown" and metadata["Summary"]
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.split("[<>=]", line)[0] for line in core} == {"torch", "transformers", "safetensors", "rich", "typer"}


def test_extras_are_for_users_and_groups_for_those_who_work_on_it(metadata):
    body = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(metadata.get_all("Provides-Extra")) == set(body["project"]["optional-dependencies"])
    assert not set(body["project"]["optional-dependencies"]) & set(body["dependency-groups"])
    assert {"dev", "docs"} <= set(body["dependency-groups"])


def test_the_server_brings_what_uploads_of_pdf_and_html_take():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "longspan[files]" in extras["serve"]
    assert {re.split("[<>=]", one)[0] for one in extras["files"]} == {"pypdf", "selectolax"}


def test_every_picture_and_link_of_the_readme_works_where_it_is_shown(metadata):
    """A package index shows README without the repository around it; what it names of the repository must be there."""
    text = str(metadata.get_payload())
    assert text.startswith("# longspan") and text.count("](") > 10
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    raw = "https://raw.githubusercontent.com/longspan/longspan/main/"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    assert pictures and all(picture.startswith("https://") for picture in pictures)
    for target in targets:
        for start in (raw, f"{HOME}/blob/main/", f"{HOME}/tree/main/"):
            if target.startswith(start):
                path = ROOT / target.removeprefix(start).partition("#")[0]
                # An sdist leaves the results' pictures out.
                assert path.exists() or ((ROOT / "PKG-INFO").exists() and path.suffix == ".png"), target


def test_nothing_large_is_in_the_repository():
    """What git keeps it keeps for ever. The bundled model alone may be larger than a megabyte."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is no git repository")
    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    large = {name for name, size in sizes.items() if size > MEGABYTE}
    assert large == {"src/longspan/bundled/model.safetensors"}
    assert sum(size for name, size in sizes.items() if name not in large) < 10 * MEGABYTE
