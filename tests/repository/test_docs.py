"""The documentation: what is made for it says what the code says, and nothing public is left out."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import typer

from longspan.cli.commands import app
from longspan.methods import METHODS, Method
from longspan.positions import Unchanged
from longspan.selection import SinksAndRecent
from support.site import build

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "gen"))

import commands  # noqa: E402
import docstrings  # noqa: E402
import made  # noqa: E402
import methods  # noqa: E402
import pictures  # noqa: E402
import reference  # noqa: E402
import sources  # noqa: E402

PAGES = {page.relative_to(DOCS).as_posix(): page for page in sorted(DOCS.rglob("*.md"))}


# The reference


def test_every_public_name_is_in_the_reference_and_has_a_docstring():
    assert reference.undocumented() == []


def test_a_name_without_a_docstring_is_named(monkeypatch, tmp_path):
    (tmp_path / "bare_module.py").write_text("__all__ = ['said', 'LIMIT', 'bare']\nLIMIT = 3\ndef bare(): ...\n")
    with (tmp_path / "bare_module.py").open("a") as file:
        file.write("def said():\n    '''It says.'''\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(reference, "packages", lambda: ("longspan", "bare_module"))
    wrong = [said for said in reference.undocumented() if said.startswith("bare_module")]
    assert wrong == ["bare_module.LIMIT has no docstring", "bare_module.bare has no docstring"]


def test_a_name_on_no_page_is_named(monkeypatch):
    monkeypatch.setattr(reference, "pages", dict)
    assert "longspan.selection.Everything is on no page of the reference" in reference.undocumented()


def test_the_reference_has_every_package_with_public_names():
    assert {"longspan", "longspan.methods", "longspan.selection", "longspan.positions"} <= set(reference.packages())
    assert len(set(reference.packages())) == len(reference.packages()) > 4


# Methods


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name):
    text = PAGES[f"methods/{name}.md"].read_text(encoding="utf-8")
    for kind in ("facts", "formula", "picture", "parameters"):
        assert f"<!-- made: {kind} {name} -->" in text
    for heading in ("## When to use it", "## In the code"):
        assert re.search(rf"^{heading}\n\n\S", text, re.MULTILINE)
    assert f"methods/{name}.md" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_parameters_is_whole(name):
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", methods.parameters(name), re.MULTILINE))
    resolved = METHODS[name]().resolve(methods.L)
    own = {field.name for field in dataclasses.fields(METHODS[name])} - {"angles"}
    assert own <= set(rows)
    assert all(rows[field] == f"`{getattr(resolved, field)!r}`" for field in own)
    assert set(rows) - own == ({"angles"} if "angles" in rows else set(dataclasses.asdict(resolved.angles)))


def test_a_parameter_that_nobody_describes_is_named(monkeypatch):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Sliding(Method):
        """Keys ``i - j < W``.

        Args:
            recent: ``W``.
        """

        name = "sliding"
        recent: int = 3
        untold: int = 4

        def selection(self, window):
            return SinksAndRecent(0, self.recent)

        def positions(self, window):
            return Unchanged()

    monkeypatch.setitem(METHODS, "sliding", Sliding)
    with pytest.raises(ValueError, match="Sliding says nothing about untold"):
        methods.parameters("sliding")


def test_parameters_of_a_docstring():
    class One:
        """What it is.

        More of it.

        Args:
            first: said
                in two lines.
            a, b: together.

        Raises:
            ValueError: never.
        """

    assert docstrings.parameters_of(One) == {"first": "said in two lines.", "a": "together.", "b": "together."}
    assert docstrings.text_of(One) == "What it is.\n\nMore of it."


def test_facts_are_the_methods_own():
    dca, rerope = methods.facts("dca"), methods.facts("rerope")
    assert "first 4,096 equal" in dca and "(https://arxiv.org/abs/2402.17463)" in dca and "two stored" not in dca
    assert "first 2,049 equal" in rerope and "1.5 times as large" in rerope


def cells(svg: str) -> dict[tuple[int, int], tuple[int, bool]]:
    """What a picture says of each pair that is kept: relative position, and whether the key was chosen."""
    said = re.findall(r"<title>query (\d+), key (\d+): seen at (\d+), true distance \d+(, chosen)?</title>", svg)
    return {(int(i), int(j)): (int(rel), bool(chosen)) for i, j, rel, chosen in said}


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name]().selects])
def test_a_picture_shows_keep_and_rel(name):
    shown = pictures.layout(name)
    found = cells(pictures.draw(shown))
    for i in range(pictures.TOKENS):
        for j in range(pictures.TOKENS):
            here = torch.tensor(i), torch.tensor(j)
            kept = j <= i and bool(shown.method.selection(pictures.WINDOW).keep(*here))
            assert ((i, j) in found) == kept == bool(shown.keep[i, j])
            if (i, j) in found:
                assert found[i, j] == (int(shown.method.positions(pictures.WINDOW).rel(*here)), False)


@pytest.mark.parametrize(("name", "chosen", "kept"), [("longheads", 4, 2), ("esa", 3, 2), ("infllm", 4, 2)])
def test_a_picture_of_a_method_that_chooses(name, chosen, kept):
    shown = pictures.layout(name)
    found = cells(pictures.draw(shown))
    for i in range(pictures.TOKENS):
        row = {j: of for (query, j), of in found.items() if query == i}
        assert sum(was for _, was in row.values()) == (chosen if i >= pictures.WINDOW else 0)
        assert row[i] == (0, False) and {*range(kept)} & {*range(i + 1)} <= set(row)
        assert all(rel < pictures.WINDOW for rel, _ in row.values())
        if i < pictures.WINDOW:
            assert {j: rel for j, (rel, _) in row.items()} == {j: i - j for j in range(i + 1)}


def test_how_much_scaled_angles_slow():
    assert pictures.slowed(METHODS["pi"]()) == pytest.approx([4.0] * 32)
    ntk, yarn = pictures.slowed(METHODS["ntk"]()), pictures.slowed(METHODS["yarn"]())
    assert ntk[0] == pytest.approx(1) and ntk[-1] == pytest.approx(4, rel=1e-5) and ntk == sorted(ntk)
    assert yarn[0] == pytest.approx(1) and yarn[-1] == pytest.approx(4, rel=1e-5)
    assert pictures.draw_slowed(yarn).count("<title>") == 32


# Everything else that is made


def test_the_pages_of_the_command_line_have_every_option():
    pages, table = commands.pages(), commands.commands()
    for name, command in typer.main.get_command(app).commands.items():
        section = pages[f"cli/{name}.md"]
        assert f"[`longspan {name}`](cli/{name}.md)" in table
        for parameter in command.params:
            named = (
                parameter.opts if parameter.opts[0].startswith("-") else [parameter.metavar or parameter.name.upper()]
            )
            assert parameter.name == "help" or all(word in section for word in named), (name, parameter.name)
    assert "| `--kv-tier` | `device` |" in pages["cli/ask.md"] and "| `--length` | required |" in pages["cli/tune.md"]


def test_options_of_the_program_itself_come_first():
    program = typer.Typer()

    @program.callback()
    def own(loud: bool = typer.Option(False, help="Say more | less.")) -> None:
        """All of it."""

    @program.command()
    def go(to: str, times: int = 3) -> None:
        """Go there. It takes a while."""

    table, pages = commands.commands(program), commands.pages(program)
    assert table.startswith("| | default | |") and "| `--loud / --no-loud` | `no` | Say more \\| less. |" in table
    assert "| [`longspan go`](cli/go.md) | Go there |" in table and "completion" not in table
    assert "$ longspan go TO [OPTIONS]" in pages["cli/go.md"] and "| `--times` | `3` |  |" in pages["cli/go.md"]


def test_a_section_is_taken_with_its_links():
    speed = made.section("benchmarks/README.md Where the time goes")
    assert f"]({sources.FILES}/benchmarks/results/speed/cases.csv)" in speed and "## " not in speed
    with pytest.raises(ValueError, match="has no section 'Nothing'"):
        made.section("README.md Nothing")
    with pytest.raises(ValueError, match="nothing makes 'nothing'"):
        made.fill("<!-- made: nothing -->")


def test_every_generated_block_is_up_to_date(tmp_path):
    """`make docs-check`; and that it finds a table that was written by hand."""
    command = [sys.executable, str(ROOT / "benchmarks" / "blocks.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    copy = tmp_path / "copy"
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.gz", "*.xz", "*.png"))
    (copy / "tests").symlink_to(ROOT / "tests")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (copy / "README.md").write_text(page.replace("| DCA |", "| DCA, better |"), encoding="utf-8")
    command[1] = str(copy / "benchmarks" / "blocks.py")
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stdout == "README.md is not up to date; run python benchmarks/blocks.py\n"


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_filled_and_its_files_exist(page):
    text = sources.resolve(made.fill(PAGES[page].read_text(encoding="utf-8")), page)
    assert "<!-- made:" not in text and "](../src" not in text
    assert all(file.is_file() for file in sources.pictures(text, page).values())


def test_a_link_into_a_file_has_its_line(tmp_path):
    linked = sources.resolve("[x](../../src/longspan/methods/dca.py#DCA.check)", "methods/dca.md")
    line = int(re.fullmatch(rf"\[x\]\({sources.FILES}/src/longspan/methods/dca.py#L(\d+)\)", linked)[1])
    assert "def check" in (ROOT / "src/longspan/methods/dca.py").read_text().splitlines()[line - 1]
    assert sources.resolve("[x](dca.md) ![y](../a.png)", "methods/esa.md") == "[x](dca.md) ![y](../a.png)"
    site = sources.resolve(f"[x]({sources.SITE}methods/dca/#parameters)", "methods/index.md")
    assert site == "[x](dca.md#parameters)"
    with pytest.raises(ValueError, match="index.md links to src/longspan/none.py, which does not exist"):
        sources.resolve("[x](../src/longspan/none.py)", "index.md")
    with pytest.raises(ValueError, match=r"defines no DCA\.none"):
        sources.resolve("[x](../src/longspan/methods/dca.py#DCA.none)", "index.md")


needs_mkdocs = pytest.mark.skipif(find_spec("mkdocs") is None, reason="pip install --group docs")


@pytest.mark.long
@needs_mkdocs
def test_the_site_is_built_without_a_warning(tmp_path):
    ran = build(ROOT, tmp_path)
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr
    assert all((tmp_path / "methods" / name / "index.html").is_file() for name in METHODS)
    reference_page = (tmp_path / "api" / "extend" / "index.html").read_text(encoding="utf-8")
    assert 'id="longspan.extend"' in reference_page and "Let a model read beyond its window" in reference_page
    longheads = (tmp_path / "methods" / "longheads" / "index.html").read_text(encoding="utf-8")
    assert longheads.count("<title>query ") > 200 and "src/longspan/choosing/chunk_index.py#L" in longheads


@pytest.mark.long
@needs_mkdocs
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](methods/dca.md#nothing)", "#nothing"),
        ("[x][longspan.nothing]", "longspan.nothing"),
        ("![x](https://example.org/x.png)", "choosing.md would fetch"),
    ],
)
def test_what_is_broken_stops_the_build(broken, said, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(DOCS, copy / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", copy)
    for name in ("src", "eval", "tests", "examples", "benchmarks", "README.md", "CONTRIBUTING.md", "CITATION.cff"):
        (copy / name).symlink_to(ROOT / name)
    with (copy / "docs" / "choosing.md").open("a") as page:
        page.write(f"\n{broken}\n")
    ran = build(copy, tmp_path / "site")
    assert ran.returncode != 0 and said in ran.stderr, ran.stderr
