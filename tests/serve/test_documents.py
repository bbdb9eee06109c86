"""Documents of a server: taken in, read in the background, kept, and there after a restart."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import DocumentError
from longspan.serve.documents.routes import _search
from support.serving import KEY, QUESTION, Served, chat, said, wait_for
from support.templates import CHATML, with_template


def test_what_is_said_of_a_document(served, document, book):
    found = served.document(document)
    assert found["status"] == "ready" and found["name"] == "book.txt" and found["object"] == "document"
    assert found["bytes"] == found["characters"] == len(book) and found["error"] is None
    assert found["tokens"] == found["tokens_read"] == served.host.library.get(document).document.tokens
    assert document in [one["id"] for one in served.http.get("/v1/documents").json()["data"]]
    part = served.http.get(f"/v1/documents/{document}/text", params={"start": 10, "end": 50}).json()
    assert part == {"id": document, "start": 10, "end": 50, "characters": len(book), "text": book[10:50]}
    assert served.http.get(f"/v1/documents/{document}/text").json()["text"] == book
    assert served.http.get(f"/v1/documents/{document}/text", params={"start": 10**9}).json()["text"] == ""
    assert served.http.get(f"/v1/documents/{document}/text", params={"start": -1}).status_code == 400
    backwards = served.http.get(f"/v1/documents/{document}/text", params={"start": 5, "end": 2})
    assert backwards.status_code == 400 and backwards.json()["error"]["param"] == "end"


def test_words_are_found_in_any_case_and_across_lines(served, document, book):
    def search(words: str) -> dict:
        return served.http.get(f"/v1/documents/{document}/search", params={"words": words}).json()

    found = search("the PASS\tkey  is 71428")
    (place,) = found["places"]
    assert found["found"] == 1 and book[place["start"] : place["end"]] == "The pass key is 71428"
    every = search("e")
    assert every["found"] == book.lower().count("e") and len(every["places"]) == min(every["found"], 1000)
    assert search("(.*)")["found"] == 0 and search(" ")["error"]["param"] == "words"


@settings(max_examples=300)
@given(st.text("aAb \n", max_size=30), st.lists(st.text("aAb", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_search_finds_what_one_expression_does(text, words):
    wanted = re.compile(r"\s+".join(words), re.IGNORECASE)
    places = [{"start": one.start(), "end": one.end()} for one in wanted.finditer(text)]
    assert _search(words, text) == (len(places), places)


def test_progress_is_told_until_it_is_read(served, book):
    id = served.add(book, "again.txt", wait=False)
    with served.http.stream("GET", f"/v1/documents/{id}/events") as response:
        told = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]
    read = [one["tokens_read"] for one in told]
    assert read == sorted(read) and read[-1] == told[-1]["tokens"] and told[-1]["status"] == "ready"
    assert len(told) > 2 and any(one["seconds_left"] for one in told), "it was told at its end alone"


def test_names_are_data(served, book):
    name = "<script>alert(1)</script>/../../etc/passwd\u202e"
    response = served.http.post("/v1/documents", files={"file": ("x.txt", book)}, data={"name": name})
    id = response.json()["id"]
    assert response.json()["name"] == name
    renamed = served.http.patch(f"/v1/documents/{id}", json={"name": "../x"})
    assert renamed.json()["name"] == served.document(id)["name"] == "../x"
    for bad in ({}, {"name": ""}, {"name": "x" * 256}, {"name": 3}, {"name": "x", "id": "y"}):
        assert served.http.patch(f"/v1/documents/{id}", json=bad).status_code == 400
    assert served.http.delete(f"/v1/documents/{id}").json() == {"id": id, "object": "document", "deleted": True}
    assert served.http.get(f"/v1/documents/{id}").status_code == 404
    assert served.http.delete(f"/v1/documents/{id}").status_code == 404
    held = sorted(one["id"] for one in served.http.get("/v1/documents").json()["data"])
    end = time.monotonic() + 30  # a step that is under way may make the folder again before it hears of the deletion
    while sorted(path.name for path in served.host.settings.documents.iterdir()) != held:
        assert time.monotonic() < end, "a deleted document left files"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.txt", b""), ("a.txt", b" \n"), ("a.txt", b"\xff\xfe\x00"), ("a.pdf", b"no pdf"), ("a.html", b"<p>")],
)
def test_files_without_a_text_are_refused(served, name, data):
    before = served.http.get("/v1/documents").json()
    response = served.http.post("/v1/documents", files={"file": (name, data)})
    assert response.status_code == 400 and response.json()["error"]["param"] == "file"
    assert str(served.host.settings.documents) not in response.text and ".upload-" not in response.text
    assert served.http.get("/v1/documents").json() == before
    assert served.http.post("/v1/documents", data={"name": "x"}).json()["error"]["param"] == "file"


@pytest.mark.parametrize(("more", "param"), [("file", "file"), ("name", "name"), ("method", "method")])
def test_an_upload_of_which_a_part_would_be_ignored_is_refused(served, more, param):
    before = served.http.get("/v1/documents").json()
    parts = [
        ("file", ("a.txt", b"one text")),
        ("name", (None, b"a name")),
        (more, ("b.txt" if more == "file" else None, b"x")),
    ]
    response = served.http.post("/v1/documents", files=parts)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
    assert served.http.get("/v1/documents").json() == before


def test_html_is_read_as_its_text(served):
    id = served.add("<html><body><p>One.</p><script>no()</script><p>Two.</p></body></html>", "page.html")
    assert served.http.get(f"/v1/documents/{id}/text").json()["text"] == "One.\nTwo."


def test_what_looks_like_markup_stays_text(served):
    text = "<script>alert(1)</script> & <b>bold</b> </s> <s>\n" * 5
    id = served.add(text)
    assert served.http.get(f"/v1/documents/{id}/text").json()["text"] == text


def test_one_that_is_still_being_read_cannot_be_asked(start, book):
    served = start(prefill_chunk=16)
    id = served.add(book, wait=False)
    response = served.http.post("/v1/chat/completions", json=chat(QUESTION, document=id))
    assert response.status_code == 409 and response.json()["error"]["param"] == "document"
    assert served.http.get(f"/v1/documents/{id}/text").status_code == 409
    served.http.delete(f"/v1/documents/{id}")
    wait_for(lambda: not served.host.engine.readings)
    assert list(served.host.settings.documents.iterdir()) == []


def test_a_short_question_while_a_text_is_read(start, book):
    """Its first token comes within the time of three prefill chunks: the one that runs, and at most two more."""
    served = start(prefill_chunk=64)
    served.ask("warm", max_tokens=1)
    id = served.add(book * 3, wait=False)
    wait_for(lambda: served.document(id)["status"] == "reading")
    for question in ("one", "two", "three"):
        before = served.host.engine.prefill_chunks
        served.ask(question, max_tokens=1)
        assert served.host.engine.prefill_chunks - before <= 3
    assert served.document(id)["status"] == "reading", "the text was too short to say anything"


def test_a_restart_goes_on(start, book, tmp_path):
    place = tmp_path / "kept"
    served = start(documents=place, prefill_chunk=64)
    done = served.add(book[:600], "done.txt")
    begun = served.add(book, "begun.txt", wait=False)
    wait_for(lambda: served.document(begun)["tokens_read"] > 128)
    answer = said(served.ask("Where?", document=done, max_tokens=6))
    served.close()
    left = json.loads((place / begun / "document" / "reading.json").read_text())["segments"][-1]["stop"]

    again = start(documents=place, prefill_chunk=64)
    wait_for(lambda: all(one["status"] == "ready" for one in again.http.get("/v1/documents").json()["data"]))
    assert {one["id"]: one["name"] for one in again.http.get("/v1/documents").json()["data"]} == {
        done: "done.txt", begun: "begun.txt",
    }  # fmt: skip
    assert 128 < left < again.document(begun)["tokens"]
    assert said(again.ask("Where?", document=done, max_tokens=6)) == answer
    assert KEY in said(again.ask(QUESTION, document=begun, max_tokens=8))
    assert not (place / begun / "text.txt").exists()


def test_a_reading_goes_on_under_another_name_and_with_other_pieces(start, book, tmp_path):
    place = tmp_path / "kept"
    served = start(documents=place, prefill_chunk=64)
    id = served.add(book, wait=False)
    wait_for(lambda: served.document(id)["tokens_read"] > 128)
    served.http.patch(f"/v1/documents/{id}", json={"name": "another.txt"})
    served.close()
    again = start(documents=place, prefill_chunk=100)
    wait_for(lambda: again.document(id)["status"] in ("ready", "failed"))
    found = again.document(id)
    assert (found["status"], found["error"], found["name"]) == ("ready", None, "another.txt")
    assert again.host.record(id).document.prefill_chunk == 64


def test_one_that_failed_is_read_at_the_next_start(start, book, tmp_path, monkeypatch):
    place = tmp_path / "kept"

    def refuse(*_, **__):
        raise DocumentError("not under this method")

    with monkeypatch.context() as patch:
        patch.setattr("longspan.serve.documents.library.begin", refuse)
        served = start(documents=place)
        id = served.add(book[:500])
        assert served.document(id)["status"] == "failed" and served.document(id)["error"] == "not under this method"
        served.close()
    again = start(documents=place)
    wait_for(lambda: again.document(id)["status"] == "ready")
    assert again.document(id)["error"] is None


def test_what_is_damaged_is_said_and_the_rest_is_there(start, book, tmp_path):
    place = tmp_path / "kept"
    served = start(documents=place)
    good, bad = served.add(book[:500]), served.add(book[:700])
    served.close()
    data = place / bad / "document" / "data-0000.bin"
    data.write_bytes(data.read_bytes()[:-1])
    (place / "doc-0123456789abcdef01234567").mkdir()  # it was not taken in: nobody was told so
    (place / "notes.txt").write_text("mine")

    again = start(documents=place)
    wait_for(lambda: again.host.ready)
    found = {one["id"]: one for one in again.http.get("/v1/documents").json()["data"]}
    assert found.keys() == {good, bad}
    assert found[good]["status"] == "ready" and found[bad]["status"] == "failed" and "bytes" in found[bad]["error"]
    response = again.http.post("/v1/chat/completions", json=chat(QUESTION, document=bad))
    assert response.status_code == 409
    assert (place / "notes.txt").exists() and not (place / "doc-0123456789abcdef01234567").exists()


def test_two_servers_never_have_one_folder(start, tmp_path, bundled):
    start(documents=tmp_path / "kept")
    with pytest.raises(ValueError, match="another server uses it"):
        start(documents=tmp_path / "kept")


def test_uploads_at_once(served, book):
    before = len(served.http.get("/v1/documents").json()["data"])
    threads = [threading.Thread(target=served.add, args=(book[:300], f"{n}.txt")) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served.http.get("/v1/documents").json()["data"]) == before + 6


@pytest.mark.parametrize("moved", ["after", "before"])
def test_one_that_is_deleted_while_it_is_read(start, book, monkeypatch, caplog, moved):
    """The engine removes the folder of a job that was cancelled: the deletion has moved it by then.

    A step that finds the folder moved away before that is no failure.
    """
    served = start(prefill_chunk=16)
    record = served.host.record(served.add(book, wait=False))
    wait_for(lambda: record.status == "reading")
    rename = Path.rename

    def slowly(path, target):
        if moved == "before":
            rename(path, target)
        time.sleep(0.3)
        return rename(path, target) if moved == "after" else target

    monkeypatch.setattr(Path, "rename", slowly)
    assert served.http.delete(f"/v1/documents/{record.id}").status_code == 200
    wait_for(lambda: not served.host.engine.readings)
    assert list(served.host.settings.documents.iterdir()) == [] and "cannot be read" not in caplog.text


def test_one_that_cannot_be_deleted_stays(start, book, monkeypatch):
    served = start()
    id = served.add(book[:500])

    def refuse(path, target):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        response = served.http.delete(f"/v1/documents/{id}")
    assert response.status_code == 507 and "Permission denied" in response.json()["error"]["message"]
    assert served.document(id)["status"] == "ready" and said(served.ask("Where?", document=id, max_tokens=2))
    assert served.http.delete(f"/v1/documents/{id}").status_code == 200


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"layout": "magic"}, "layout"),
        ({"layout": "quoted"}, "layout"),  # the bundled tokenizer has no chat template
        ({"system": "Be brief."}, "system"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_at_once(served, sent, param):
    response = served.http.post("/v1/documents", files={"file": ("x.txt", b"a text")}, data=sent)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_document_is_read_in_its_own_layout_also_after_a_restart(start, book, tmp_path, bundled):
    tokenizer = with_template(bundled[1], CHATML)
    served = Served(bundled[0], tokenizer, tmp_path / "kept", prefill_chunk=16)
    sent = {"layout": "quoted", "system": "Be brief."}
    response = served.http.post("/v1/documents", files={"file": ("x.txt", book.encode())}, data=sent)
    id = response.json()["id"]
    wait_for(lambda: served.document(id)["tokens_read"] > 0)
    served.close()
    again = Served(bundled[0], tokenizer, tmp_path / "kept")
    wait_for(lambda: again.document(id)["status"] in ("ready", "failed"))
    layout = again.host.record(id).document.layout
    again.close()
    assert (layout.name, layout.system) == ("quoted", "Be brief.") and "Be brief." in layout.head
