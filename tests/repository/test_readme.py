"""README: what it gives to copy runs, and what it links to exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.bundled import FOLDER, heldout_text
from longspan.methods import METHODS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "gen"))

import sources  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


def test_the_python_to_copy_runs(tmp_path):
    (code,) = blocks("python")
    assert MODEL in code
    (tmp_path / "book.txt").write_text(heldout_text()[:3000], encoding="utf-8")
    code = code.replace(MODEL, str(FOLDER))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    layers = json.loads((FOLDER / "config.json").read_text())["num_hidden_layers"]
    assert re.search(r"method +esa\s", ran.stdout) and re.search(rf"\blayers 0-{layers - 1}\b", ran.stdout)
    report, _, answer = ran.stdout.partition("\ndecoding ")
    assert report and answer.partition("\n")[2].strip(), "no answer was typed"


def test_the_other_commands_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    optional = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = re.findall(r"^([\w-]+) = \[", optional, re.MULTILINE)
    made = [c for c in COMMANDS if c.startswith("make ")]
    assert "make demo" in made
    assert {c.removeprefix("make ") for c in made} <= targets
    assert "pip install '.[gguf,serve]' ./eval" in COMMANDS
    assert {each for found in re.findall(r"'\.\[([\w,-]+)\]'", README) for each in found.split(",")} <= set(extras)


def links() -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", README)


def test_every_link_is_absolute_as_pypi_shows_it_too():
    assert [link for link in links() if not link.startswith("https://")] == []


@pytest.mark.parametrize("link", sorted({link for link in links() if link.startswith(sources.SITE)}))
def test_links_to_the_site_are_pages(link):
    page, _, anchor = link.removeprefix(sources.SITE).partition("#")
    file = ROOT / "docs" / sources.page_of(page.rstrip("/")) if page else ROOT / "docs" / "index.md"
    assert file.is_file(), f"{link} is no page"
    headings = {
        re.sub(r"[^\w-]", "", h.lower().replace(" ", "-")) for h in re.findall(r"^#+ (.*)", file.read_text(), re.M)
    }
    assert not anchor or anchor in headings


@pytest.mark.parametrize("link", sorted({link for link in links() if "/longspan/longspan/" in link}))
def test_links_to_the_repository_are_files(link):
    path = re.sub(r"^https://(github\.com|raw\.githubusercontent\.com)/longspan/longspan/", "", link)
    path = re.sub(r"^(blob/|tree/)?main/", "", path)
    if not path.startswith("actions"):
        assert (ROOT / path).exists()


def test_the_table_of_methods_is_of_all_methods():
    rows = re.findall(rf"^\| \[`([\w-]+)`\]\({re.escape(sources.SITE)}methods/([\w-]+)/\) \|", README, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(METHODS) and all(name == page for name, page in rows)
