"""read, ask, chat, documents and verify, as a person runs them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
from pathlib import Path

import pytest

from longspan.cli.ask import typed
from support.command_line import refused
from support.loaded_modules import loaded

ASK = "Who is the narrator?"


def test_ask(run, document):
    ran = run("ask", document, ASK, "--max-new-tokens", "6")
    assert ran.code == 0 and ran.out.strip() and "the first after" in ran.err
    body = json.loads(run("ask", document, ASK, "--max-new-tokens", "6", "--json").out)
    assert body["text"].strip() == ran.out.strip() and len(body["tokens"]) <= 6 and body["passages"] is None
    quiet = run("ask", document, ASK, "--max-new-tokens", "6", "--quiet", "--verify")
    assert quiet.out == ran.out and quiet.err == ""


def test_other_weights(run, folder, book, tmp_path):
    """A document has the form and dtype of what read it; another one answers if it is allowed to, and says how well."""
    place = tmp_path / "packed.longspan"
    ran = run("read", book, "--model", folder, "--weights", "int8", "--out", place, "--device", "cpu", "--no-check")
    assert ran.code == 0, ran.err
    facts = json.loads((place / "manifest.json").read_text())["facts"]
    assert (facts["dtype"], facts["weights"]) == ("mixed", "int8")
    told = ("ask", place, ASK, "--max-new-tokens", "3", "--json", "--device", "cpu")
    assert json.loads(run(*told).out)["weights_differ_by"] is None
    for form in ("int4", "fp32"):
        ran = run(*told, "--weights", form)
        assert ran.code == 1 and form.replace("fp32", "float32") in ran.err and "--allow" in ran.err, ran.err
    ran = run(*told, "--weights", "int4", "--allow-other-weights")
    assert 0 < json.loads(ran.out)["weights_differ_by"] < 0.5 and "note: other weights" in ran.err, ran.err


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
    method = "--method", "longheads:score=bounds"
    ran = run("read", book, "--model", folder, "--out", moved, *options, "--kv-dir", tmp_path, *method)
    assert ran.code == 0, ran.err
    assert run("ask", moved, ASK, "--max-new-tokens", "6", "--quiet", *options).out == expected


def test_ask_for_passages(run, document, tmp_path):
    ran = run("ask", document, ASK, "--max-new-tokens", "4", "--passages", "--html", tmp_path / "page.html")
    assert ran.code == 0 and "book.txt, characters" in ran.out
    page = (tmp_path / "page.html").read_text()
    assert page.count("data-t=") <= 4 and "data-p=" in page and ASK in page
    assert "default-src 'none'" in page
    body = json.loads(run("ask", document, ASK, "--max-new-tokens", "4", "--passages", "--json").out)
    assert body["passages"][0]["lift"] >= body["passages"][-1]["lift"] > 1


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
    assert "tokens in" in ran.err and "characters" in ran.err
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
    assert row["state"].startswith("whole; an append was interrupted, and") and row["reason"] is None
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


@pytest.mark.parametrize("command", ["documents", "verify"])
def test_neither_loads_torch(document, command):
    got = loaded(f"from longspan.cli import main; main([{command!r}, {str(document)!r}])")
    assert not got & {"torch", "transformers", "numpy"}


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


def test_names_of_texts(run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Some words from a pipe. " * 40)))
    out = tmp_path / "a"
    assert run("read", "-", "--model", folder, "--out", out).code == 0
    assert json.loads((out / "manifest.json").read_text())["facts"]["sources"][0]["name"] == "standard input"
    refused(run("read", tmp_path / "x.txt", "--model", folder, "--out", ""), "the name is empty")
    refused(run("ask", out, ASK, "--html", ""), "the name is empty")
    assert run("ask", out, ASK, "--kv-tier", "disk", "--max-new-tokens", "2").code == 0
    refused(run("ask", out, ASK, "--kv-tier", "attic"), "attic")


def test_a_document_without_a_name_is_called_after_its_text(run, folder, book, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("read", book, "--model", folder)
    assert ran.code == 0 and ran.out == "book.longspan\n" and (tmp_path / "book.longspan" / "manifest.json").is_file()
    (tmp_path / "book.md").write_text("Another text.")
    refused(run("read", "book.md", "--model", folder), "book.longspan", "already holds a document of another")
    refused(run("read", "-", "--model", folder), "--out is missing: a text on stdin")
    refused(run("read", book, "--append"), "--out is missing: name the document")


def test_one_line(run, folder, book, document, tmp_path):
    out = ["--model", folder, "--out"]
    refused(run("read", tmp_path / "none.txt", *out, tmp_path / "a"), "none.txt")
    refused(run("read", book, *out, document, "--method", "dca"), "already holds a document of another", "method")
    refused(run("read", book, *out, book), "is a file")
    refused(run("read", book, *out, tmp_path / "a", "--method", "magic"), "magic")
    refused(run("read", book, *out, tmp_path / "a", "--layout", "x"), "a layout must be")
    refused(run("read", book, *out, tmp_path / "a", "--append"), "this document does not exist")
    refused(run("ask", document, " "), "question is empty")
    refused(run("ask", tmp_path / "none", ASK), "this document does not exist")
    refused(run("ask", document, ASK, "--model", "bundled"), "in the document and")
    refused(run("ask", document, ASK, "--html", tmp_path / "no" / "page.html"), "page.html")
    refused(run("chat", tmp_path), "this folder is not a document")
    refused(run("documents", tmp_path / "none"), "this folder does not exist")
    refused(run("verify", book), "is a file")


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
        run("read", book, "--model", folder, "--out", document, "--append"),
        "facts.prefill_chunk is 0, which is invalid",
    )
    forge(document, lambda facts: facts.update(prefill_chunk=64, window=2**40))
    ran = run("ask", document, ASK)
    refused(ran, "facts.window is 1099511627776, which is invalid", "read the text again")
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
