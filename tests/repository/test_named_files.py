"""Every Python file that a docstring or a Markdown page names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "eval", "docs", "tests", "benchmarks", "examples", "training")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
ENDS = {"/".join(path.parts[-n:]) for path in SOURCES for n in range(1, len(path.relative_to(ROOT).parts) + 1)}
NAMED = re.compile(r"(?<![\w.*<{])[\w/\-]*\w\.py\b")
WRITTEN = re.compile(r"^# ([\w/\-]*\w\.py)\b", re.M)  # a file of the reader's own, whose text begins with its name


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def missing(text: str) -> list[str]:
    """The files in ``text`` that are no file of the repository, by their whole path or by its end, nor in ``text``."""
    names = NAMED.findall(re.sub(r"https?://\S+", "", text))
    return [name for name in names if name.lstrip("/") not in ENDS and name not in WRITTEN.findall(text)]


def test_every_file_that_a_docstring_names_exists():
    assert len(SOURCES) > 300
    named = {path.name: missing("\n".join(docstrings(path.read_text("utf-8")))) for path in SOURCES}
    assert {name: files for name, files in named.items() if files and name != Path(__file__).name} == {}


def test_every_file_that_a_page_names_exists():
    assert len(PAGES) > 30
    named = {page.relative_to(ROOT).as_posix(): missing(page.read_text("utf-8")) for page in PAGES}
    assert {page: files for page, files in named.items() if files} == {}


def test_a_file_that_does_not_exist_is_found():
    assert missing("see `bands.py`, ``figures_of_old.py`` and tests/evaluation/test_run.py; `*.py` is no name") == [
        "figures_of_old.py",
        "tests/evaluation/test_run.py",
    ]
