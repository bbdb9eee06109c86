"""What a file may take of time, memory and room, before anything of the model is loaded."""

from __future__ import annotations

import sys

import pytest
import typer

from longspan.cli.commands import app
from support.command_line import run  # noqa: F401  a fixture
from support.pdf_files import page_of

pytest.importorskip("pypdf")
pytest.importorskip("selectolax")
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")
SLOW = page_of(b"BT /F 12 Tf 9 9 Td " + b"(x) Tj " * 100_000 + b"ET", pages=1000, packed=True)
WIDE = b"<p>" + b"<b>x</b>" * 2_000_000


@pytest.mark.parametrize(
    ("name", "data", "given", "words"),
    [
        ("a.pdf", SLOW, ["--extract-seconds", "1"], "takes more than 1 seconds"),
        pytest.param("a.html", WIDE, ["--extract-memory", "200M"], "209,715,200 bytes of memory", marks=linux),
        ("a.html", b"<p>" + b"word " * 300, ["--extract-size", "1K"], "the file has more than 1,024 bytes"),
        ("a.html", "<p>".encode("utf-16") + b"\x18\x26" * 400, ["--extract-size", "1K"], "text of the file has more"),
        ("a.html", b"<p>x", ["--extract-memory", "much"], "--extract-memory must be a size such as 512M"),
    ],
    ids=["time", "memory", "file", "text", "size"],
)
def test_a_file_beyond_a_limit_is_one_line(run, monkeypatch, tmp_path, name, data, given, words):  # noqa: F811
    monkeypatch.setattr("longspan.cli.read.load_model", lambda *_, **__: pytest.fail("it loads the model"))
    path = tmp_path / name
    path.write_bytes(data)
    ran = run("read", path, "--out", tmp_path / "document", "--model", "bundled", *given)
    (line,) = ran.err.splitlines()
    assert ran.code == 1 and line.startswith("longspan: error: ") and words in line and given[0] in line
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_they_are_those_of_the_server():
    commands = typer.main.get_command(app).commands
    read, serve = ({one.name: one.default for one in commands[name].params} for name in ("read", "serve"))
    assert (read["extract_seconds"], read["extract_memory"]) == (serve["extract_seconds"], serve["extract_memory"])
    assert read["extract_size"] == serve["max_body"]


def test_defects_of_a_file_are_told(run, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr("longspan.cli.read.load_model", lambda *_, **__: sys.exit(7))
    path = tmp_path / "a.pdf"
    path.write_bytes(page_of(b"BT /F 12 Tf 9 9 Td (Call me Ishmael.) Tj ET").replace(b"startxref\n", b"startxref\n1"))
    ran = run("read", path, "--out", tmp_path / "document", "--model", "bundled")
    assert f"warning: {path}: " in ran.err and "defects of this PDF file" in ran.err
