"""read, ask, chat, documents and verify, as a person runs them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longspan.bundled import heldout_text
from longspan.cli.ask import typed
from longspan.documents import segments

ASK = "Who is the narrator?"


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "book.txt"
    path.write_text(heldout_text()[:3_000], encoding="utf-8")
    return path


@pytest.fixture
def document(run, folder, book, tmp_path):
    ran = run("read", book, "--model", folder, "--out", tmp_path / "book.longspan", "--device", "cpu")
    assert ran.code == 0 and ran.out == f"{tmp_path / 'book.longspan'}\n", ran.err
    assert "tokens under longheads:" in ran.err
    return tmp_path / "book.longspan"


def test_ask(run, document):
    ran = run("ask", document, ASK, "--max-new-tokens", "6")
    assert ran.code == 0 and ran.out.strip() and "the first after" in ran.err
    body = json.loads(run("ask", document, ASK, "--max-new-tokens", "6", "--json").out)
    assert body["text"].strip() == ran.out.strip() and len(body["tokens"]) <= 6 and body["passages"] is None
    quiet = run("ask", document, ASK, "--max-new-tokens", "6", "--quiet", "--verify")
    assert quiet.out == ran.out and quiet.err == ""


@pytest.mark.parametrize("command", ["read", "ask", "chat", "generate"])
def test_help_names_every_tier(run, command):
    said = " ".join(re.sub(r"[│|]", " ", run(command, "--help").out).split())
    assert "device, host or disk; auto moves it when memory is nearly full" in said
    assert ("for --kv-tier disk or auto" in said) is (command in ("read", "generate"))


def test_a_cache_that_may_move(run, document, folder, book, tmp_path):
    """``--kv-tier auto`` reads and answers as the device does."""
    expected = run("ask", document, ASK, "--max-new-tokens", "6", "--quiet").out
    moved = tmp_path / "moved.longspan"
    options = ["--kv-tier", "auto", "--device", "cpu"]
    ran = run("read", book, "--model", folder, "--out", moved, *options, "--kv-dir", tmp_path)
    assert ran.code == 0, ran.err
    assert run("ask", moved, ASK, "--max-new-tokens", "6", "--quiet", *options).out == expected


def test_ask_for_passages(run, document, tmp_path):
    ran = run("ask", document, ASK, "--max-new-tokens", "4", "--passages", "--html", tmp_path / "page.html")
    assert ran.code == 0 and "which is no proof" in ran.out and "book.txt, characters" in ran.out
    page = (tmp_path / "page.html").read_text()
    assert page.count("data-t=") <= 4 and "data-p=" in page and ASK in page
    assert "default-src 'none'" in page
    body = json.loads(run("ask", document, ASK, "--max-new-tokens", "4", "--passages", "--json").out)
    assert body["passages"][0]["chosen"] >= body["passages"][-1]["chosen"] > 0


def test_a_page_of_a_text_that_holds_html(run, folder, tmp_path):
    (tmp_path / "x.txt").write_text("</script><script>alert(1)</script> & <b>bold</b> words. " * 60)
    run("read", tmp_path / "x.txt", "--model", folder, "--out", tmp_path / "x.longspan")
    ran = run("ask", tmp_path / "x.longspan", "<i>?", "--max-new-tokens", "3", "--html", tmp_path / "x.html")
    assert ran.code == 0
    page = (tmp_path / "x.html").read_text()
    assert "<script>alert" not in page and "<i>?" not in page and page.count("</script>") == 2


def test_chat(run, document, tmp_path, monkeypatch):
    lines = [
        ASK,
        "/passages",
        "And then?",
        "/undo",
        "",
        "/what",
        "/save",
        f"/save {tmp_path / 'talk.longspan'}",
        "/quit",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "never read"])))
    ran = run("chat", document, "--max-new-tokens", "5")
    assert ran.code == 0 and len(ran.out.strip().splitlines()) >= 2
    assert "taken back: And then?" in ran.err and "/what: no such command; there are /save FOLDER" in ran.err
    assert "/save takes a folder" in ran.err
    assert "tokens in" in ran.err and "which is no proof" in ran.err
    monkeypatch.setattr("sys.stdin", io.StringIO(ASK))
    again = json.loads(run("chat", tmp_path / "talk.longspan", "--json", "--max-new-tokens", "5").out)
    assert [turn["question"] for turn in again["turns"]] == [ASK]


def test_a_conversation_is_saved_in_the_home_folder(run, document, tmp_path, monkeypatch):
    """A line of a chat goes through no shell, which would put the folder's name in for the tilde."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("/save ~/talks/first\n"))
    ran = run("chat", document)
    assert ran.code == 0 and str(tmp_path / "home/talks/first") in ran.err and not (tmp_path / "~").exists()
    assert run("verify", tmp_path / "home/talks/first").code == 0


def test_chat_when_quiet_says_what_was_asked_for_and_goes_on_after_a_bad_line(run, document, monkeypatch):
    lines = io.TextIOWrapper(io.BytesIO(b"\xff\xfe bad\n/save /proc/nothing\n" + ASK.encode() + b"\n/passages\n"))
    monkeypatch.setattr("sys.stdin", lines)
    ran = run("chat", document, "--max-new-tokens", "5", "-q")
    assert ran.code == 0 and ran.out.strip()
    first, second, *passages = ran.err.splitlines()
    assert first.startswith("error: the question: not UTF-8") and second.startswith("error: ") and passages


def test_documents_and_verify(run, document, tmp_path):
    ran = run("documents", tmp_path)
    assert ran.code == 0 and "book.longspan" in ran.out and "whole" in ran.out and "longheads" in ran.out
    (row,) = json.loads(run("documents", tmp_path, "--json").out)["documents"]
    assert row["tokens"] > 500 and row["bytes"] > 0
    whole = run("verify", document)
    assert whole.code == 0 and "whole" in whole.out
    assert json.loads(run("verify", document, "--json").out)["tokens"] == row["tokens"]
    data = document / "data-0000.bin"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    broken = run("verify", document)
    assert broken.code == 1 and broken.out == "" and len(broken.err.splitlines()) == 1
    assert run("documents", document).out == run("documents", tmp_path).out, "a document is listed itself"
    (document / "reading.json").write_text("{}")
    (row,) = json.loads(run("documents", tmp_path, "--json").out)["documents"]
    assert row["state"].startswith("whole; an append was stopped, and") and row["reason"] is None
    (document / "reading.json").unlink()
    (document / "manifest.json").write_text("{}")
    ran = run("documents", tmp_path)
    table, reason = ran.out.strip().rsplit("\n", 1)
    assert "cannot be opened" in table and "manifest" not in table, "a sentence does not fill the table"
    assert reason.startswith("book.longspan: its manifest has no field ")
    (row,) = json.loads(run("documents", tmp_path, "--json").out)["documents"]
    assert row["state"] == "cannot be opened" and row["reason"] in reason
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no document in it" in run("documents", empty).err


def test_folders_that_may_not_be_looked_into(run, document, tmp_path, monkeypatch):
    """Such as lost+found beside the documents, and a document of somebody else."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "manifest.json").write_text("{}")

    def refusing(call, name):
        def refuse(path):
            if name in path.parts:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path)

        return refuse

    monkeypatch.setattr(Path, "is_file", refusing(Path.is_file, "lost+found"))
    monkeypatch.setattr(Path, "iterdir", refusing(Path.iterdir, "closed"))
    ran = run("documents", tmp_path, "--json")
    assert ran.code == 0, ran.err
    rows = {row["document"]: row for row in json.loads(ran.out)["documents"]}
    assert rows["book.longspan"]["state"] == "whole" and rows.keys() == {"book.longspan", "closed"}
    assert "Permission denied" in rows["closed"]["reason"]


@pytest.mark.parametrize("named", [True, False])
def test_append(run, folder, book, document, tmp_path, named):
    (tmp_path / "more.txt").write_text("The narrator is called Ishmael. " * 9)
    before = json.loads(run("documents", tmp_path, "--json").out)["documents"][0]["tokens"]
    model = ["--model", folder] if named else []  # that is the one which the document names
    ran = run("read", tmp_path / "more.txt", *model, "--out", document, "--append")
    assert ran.code == 0, ran.err
    assert json.loads(run("documents", tmp_path, "--json").out)["documents"][0]["tokens"] > before


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
    assert process.returncode == 128 + signal.SIGTERM and "tokens are kept in" in err
    assert "an append was stopped" in run("documents", tmp_path).out
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
    assert run("read", book, "--model", folder, "--out", whole, "--prefill-chunk", "64").code == 0
    limits, size = resource.getrlimit(resource.RLIMIT_FSIZE), (whole / "data-0000.bin").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
        ran = run("read", book, "--model", folder, "--out", path, "--prefill-chunk", "64")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused(ran, "data-0000.bin: File too large; nothing of it is kept")
    assert run("read", book, "--model", folder, "--out", path, "--prefill-chunk", "64").code == 0


def test_a_disk_that_fills_up(run, folder, book, tmp_path, monkeypatch):
    """One line names the file and what is kept, and the reading goes on from there."""
    put, written = segments.write_at, []

    def full(file, at, data):
        written.append(at)
        if len(written) > 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(file, at, data)

    args = ["read", book, "--model", folder, "--out", tmp_path / "a", "--prefill-chunk", "64"]
    with monkeypatch.context() as patched:
        patched.setattr(segments, "write_at", full)
        ran = run(*args)
    refused(ran, "data-0000.bin: No space left on device; ", " tokens are kept in ", "the same command goes on")
    assert run(*args).code == 0


def test_names_of_texts(run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Some words from a pipe. " * 40)))
    out = tmp_path / "a"
    assert run("read", "-", "--model", folder, "--out", out).code == 0
    assert json.loads((out / "manifest.json").read_text())["facts"]["sources"][0]["name"] == "standard input"
    refused(run("read", tmp_path / "x.txt", "--model", folder, "--out", ""), "the name is empty")
    refused(run("ask", out, ASK, "--html", ""), "the name is empty")
    assert run("ask", out, ASK, "--kv-tier", "disk", "--max-new-tokens", "2").code == 0
    refused(run("ask", out, ASK, "--kv-tier", "attic"), "attic")


def refused(ran, *words):
    assert ran.code != 0 and ran.out == "" and len(ran.err.splitlines()) == 1, ran
    assert all(word in ran.err for word in words), ran.err


def test_line_breaks_of_a_layout(run, folder, book, tmp_path):
    r"""A shell passes ``\n`` in quotes on as two characters; the command of the documentation means a line break."""
    layout = r"Read:\n{document}\n\nQ: {question}\nA:"
    assert run("read", book, "--model", folder, "--out", tmp_path / "a", "--layout", layout).code == 0
    kept = json.loads((tmp_path / "a" / "manifest.json").read_text())["facts"]["layout"]
    assert (kept["head"], kept["joint"], kept["end"]) == ("Read:\n", "\n\nQ: ", "\nA:")


def test_one_line(run, folder, book, document, tmp_path):
    out = ["--model", folder, "--out"]
    refused(run("read", tmp_path / "none.txt", *out, tmp_path / "a"), "none.txt")
    refused(run("read", book, *out, document, "--method", "dca"), "a document here already", "method")
    refused(run("read", book, *out, book), "is a file")
    refused(run("read", book, *out, tmp_path / "a", "--method", "magic"), "magic")
    refused(run("read", book, *out, tmp_path / "a", "--layout", "x"), "a layout is")
    refused(run("read", book, *out, tmp_path / "a", "--append"), "no such document")
    refused(run("ask", document, " "), "question is empty")
    refused(run("ask", tmp_path / "none", ASK), "no such document")
    refused(run("ask", document, ASK, "--model", "bundled"), "in the document and")
    refused(run("ask", document, ASK, "--html", tmp_path / "no" / "page.html"), "page.html")
    refused(run("chat", tmp_path), "no document in this folder")
    refused(run("documents", tmp_path / "none"), "no such folder")
    refused(run("verify", book), "is a file")


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
    assert "tokens are kept in" in err and err.splitlines()[-1].startswith("longspan: ")
    assert "read up to" in run("documents", tmp_path).out
    refused(run("ask", out, ASK), "not finished", "run the same `longspan read` again")
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


def forge(document, change):
    """Another value in the manifest of a document, and its checksum anew."""
    held = json.loads((document / "manifest.json").read_text())
    del held["sha256"]
    change(held["facts"])
    own = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    (document / "manifest.json").write_text(json.dumps({"sha256": own, **held}))


def test_a_forged_value_is_refused_as_the_document_s(run, folder, book, document):
    forge(document, lambda facts: facts.update(prefill_chunk=0))
    refused(
        run("read", book, "--model", folder, "--out", document, "--append"), "facts.prefill_chunk is 0, which cannot be"
    )
    forge(document, lambda facts: facts.update(prefill_chunk=64, window=2**40))
    ran = run("ask", document, ASK)
    refused(ran, "facts.window is 1099511627776, which cannot be", "read the text again")
    assert "--window" not in ran.err


def test_each_difference_ends_before_the_next(run, document):
    def change(facts):
        facts["config"].update(rms_norm_eps=0.5)
        facts.update(tokenizer_sha256="0" * 64)

    forge(document, change)
    ran = run("ask", document, ASK)
    refused(ran, f": load the model that read it; {document}: the tokenizer's hash is ")


def test_control_characters_do_not_reach_the_terminal(run, document, tmp_path):
    forge(document, lambda facts: facts.update(source="\x1b]0;owned\x07"))
    ran = run("documents", tmp_path)
    assert "\x1b" not in ran.out and "\x07" not in ran.out and "owned" in ran.out
    refused(run("ask", document, ASK), "owned")
    assert "\x1b" not in run("ask", document, ASK).err


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_is_escaped_for_a_terminal(monkeypatch, terminal):
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdout", out)
    for part in ("one\ttwo\n", "\x1b", "]0;title\x07", "\r\x9b2J"):
        typed(part)
    escaped = "one\ttwo\n\\x1b]0;title\\x07\\r\\x9b2J"
    assert out.getvalue() == (escaped if terminal else "one\ttwo\n\x1b]0;title\x07\r\x9b2J")
