"""read and read --append, as a person runs them: stopped, out of room, done again."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from longspan.documents import segments
from support.command_line import refused


@pytest.mark.parametrize("named", [True, False])
def test_append(run, folder, book, document, tmp_path, named):
    (tmp_path / "more.txt").write_text("The narrator is called Ishmael. " * 9)
    before = json.loads(run("documents", tmp_path, "--json").out)["documents"][0]["tokens"]
    model = ["--model", folder] if named else []  # that is the one which the document names
    ran = run("read", tmp_path / "more.txt", *model, "--out", document, "--append")
    assert ran.code == 0, ran.err
    assert json.loads(run("documents", tmp_path, "--json").out)["documents"][0]["tokens"] > before


def test_int8(run, folder, book, tmp_path):
    (tmp_path / "more.txt").write_text("The narrator is called Ishmael. " * 9)
    out = tmp_path / "book.longspan"
    ran = run("read", book, "--model", folder, "--kv", "int8", "--out", out)
    assert ran.code == 0, ran.err
    assert json.loads((out / "manifest.json").read_text())["facts"]["kv"] == "int8"
    refused(run("read", tmp_path / "more.txt", "--kv", "int8", "--out", out, "--append"), "leave out --kv")
    refused(run("read", book, "--model", folder, "--out", out), "kv (int8, now exact)")
    assert run("read", tmp_path / "more.txt", "--out", out, "--append").code == 0
    ran = run("ask", out, "Who?", "--verify", "--max-new-tokens", "2")
    assert ran.code == 0, ran.err


def test_an_append_that_is_done_again_appends_nothing(run, folder, document, tmp_path):
    (tmp_path / "more.txt").write_text("The narrator is called Ishmael. " * 9)
    args = ["read", tmp_path / "more.txt", "--model", folder, "--out", document, "--append"]
    first, manifest = run(*args), (document / "manifest.json").read_bytes()
    again = run(*args)
    assert first.code == again.code == 0 and "nothing was appended" not in first.err
    assert "ends with this text already; nothing was appended" in again.err
    assert (document / "manifest.json").read_bytes() == manifest


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals of its own")
def test_an_append_that_is_stopped_goes_on(run, folder, book, tmp_path):
    out = tmp_path / "a.longspan"
    assert run("read", book, "--model", folder, "--out", out, "--device", "cpu", "--prefill-chunk", "16").code == 0
    (tmp_path / "more.txt").write_text("The narrator is called Ishmael. " * 200)
    args = ["read", str(tmp_path / "more.txt"), "--model", str(folder), "--out", str(out), "--append"]
    code = "from longspan.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True)
    while not (out / "reading.json").exists() and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and "tokens are saved in" in err
    assert "an append was interrupted" in run("documents", tmp_path).out
    assert run(*args).code == 0 and run("verify", out).code == 0
    assert "append" not in run("documents", tmp_path).out


def test_several_files_of_several_kinds(run, folder, book, tmp_path):
    pytest.importorskip("selectolax")
    (tmp_path / "page.html").write_text("<p>One</p><p>two words</p>" * 30)
    out = tmp_path / "all.longspan"
    ran = run("read", book, tmp_path / "page.html", "--model", folder, "--out", out, "--json", "--quiet")
    assert ran.code == 0 and json.loads(ran.out)["tokens"] > 500 and ran.err == ""
    sources = json.loads((out / "manifest.json").read_text())["facts"]["sources"]
    assert [one["name"] for one in sources] == ["book.txt", "page.html"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files")
def test_a_limit_on_files(run, folder, book, tmp_path):
    import resource

    whole, path = tmp_path / "whole", tmp_path / "a"
    options = ["--prefill-chunk", "64", "--method", "longheads"]
    assert run("read", book, "--model", folder, "--out", whole, *options).code == 0
    limits, size = resource.getrlimit(resource.RLIMIT_FSIZE), (whole / "data-0000.bin").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
        ran = run("read", book, "--model", folder, "--out", path, *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused(ran, "data-0000.bin: File too large; nothing of it is kept")
    assert run("read", book, "--model", folder, "--out", path, *options).code == 0


def test_a_disk_that_fills_up(run, folder, book, tmp_path, monkeypatch):
    """One line names the file and what is kept, and the reading goes on from there."""
    put, written = segments.write_at, []

    def full(file, at, data):
        written.append(at)
        if len(written) > 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(file, at, data)

    args = ["read", book, "--model", folder, "--out", tmp_path / "a", "--prefill-chunk", "64", "--method", "longheads"]
    with monkeypatch.context() as patched:
        patched.setattr(segments, "write_at", full)
        ran = run(*args)
    refused(
        ran, "data-0000.bin: No space left on device; ", " tokens are saved in ", "run the same command to continue"
    )
    assert run(*args).code == 0


def test_line_breaks_of_a_layout(run, folder, book, tmp_path):
    r"""A shell passes ``\n`` in quotes on as two characters; the command of the documentation means a line break."""
    layout = r"Read:\n{document}\n\nQ: {question}\nA:"
    assert run("read", book, "--model", folder, "--out", tmp_path / "a", "--layout", layout).code == 0
    kept = json.loads((tmp_path / "a" / "manifest.json").read_text())["facts"]["layout"]
    assert (kept["head"], kept["joint"], kept["end"]) == ("Read:\n", "\n\nQ: ", "\nA:")


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals of its own")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reading_that_is_stopped_goes_on(run, folder, book, tmp_path, number):
    out = tmp_path / "a.longspan"
    args = ["read", str(book), "--model", str(folder), "--out", str(out), "--prefill-chunk", "16", "--device", "cpu"]
    code = "from longspan.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True)
    while not list(out.glob("reading-*[3-9][0-9].safetensors")) and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number and not (out / "manifest.json").exists()
    assert "tokens are saved in" in err and err.splitlines()[-1].startswith("longspan: ")
    assert "read up to" in run("documents", tmp_path).out
    refused(run("ask", out, "Who is the narrator?"), "is unfinished", "run the same `longspan read` again")
    assert run(*args).code == 0
    assert run("verify", out).code == 0


def test_a_log_tells_how_far_a_reading_is(run, folder, book, tmp_path, monkeypatch):
    monkeypatch.setattr("longspan.cli.read.RETOLD", 0.001)
    where = ("--model", folder, "--out", tmp_path / "x.longspan", "--prefill-chunk", "256")
    told = [line for line in run("read", book, *where).err.splitlines() if "tokens/s" in line]
    assert told and all(re.fullmatch(r"[\d,]+ of [\d,]+ tokens, [\d,]+ tokens/s, \d+:\d\d left", line) for line in told)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_log_that_is_lost_ends_no_reading(folder, book, tmp_path):
    code = "import longspan.cli.read as r; r.RETOLD = 0.001; from longspan.cli import main; main()"
    out = tmp_path / "x.longspan"
    args = ["read", str(book), "--model", str(folder), "--out", str(out), "--prefill-chunk", "256"]
    with open("/dev/full", "wb") as full:
        subprocess.run([sys.executable, "-c", code, *args], stderr=full, stdout=subprocess.DEVNULL, timeout=120)
    assert (out / "manifest.json").exists()


def test_an_append_refuses_options_of_a_reading(run, folder, book, document, tmp_path):
    given = ["--method", "dca", "--window", 64, "--calibration", tmp_path / "none", "--prefill-chunk", 9]
    for text in ("--no-text", "--text"):
        ran = run("read", book, "--model", folder, "--out", document, "--append", *given, text, "--kv-dir", tmp_path)
        refused(ran, f"leave out --method, --window, --calibration, --prefill-chunk, {text}, --kv-dir")
