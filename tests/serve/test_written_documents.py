"""Documents that `longspan read` wrote, in a server; and those that a server read, in a terminal."""

from __future__ import annotations

import logging
import shutil

import pytest

import longspan
from longspan.bundled import load_bundled
from support.command_line import refused, run  # noqa: F401  a fixture
from support.serving import KEY, QUESTION, said, wait_for


@pytest.fixture(scope="session")
def written(bundled, book, tmp_path_factory):
    """A document of the model as it is served."""
    path = tmp_path_factory.mktemp("written") / "book.longspan"
    longspan.read(*bundled, [("book.txt", book)], out=path)
    return path


@pytest.fixture(scope="session")
def of_dca(book, tmp_path_factory):
    """A document under another method."""
    path = tmp_path_factory.mktemp("dca") / "other"
    longspan.read(*load_bundled(), [("other.txt", book[:900])], method="dca", out=path)
    return path


def listed(served) -> dict[str, dict]:
    wait_for(lambda: served.host.ready)
    return {one["name"]: one for one in served.http.get("/v1/documents").json()["data"]}


@pytest.mark.parametrize("place", ["in the folder", "named", "both"])
def test_it_is_listed_and_asked(start, written, book, tmp_path, place):
    documents = tmp_path / "documents"
    copy = documents / "book.longspan" if place != "named" else tmp_path / "elsewhere"
    shutil.copytree(written, copy)
    before = sorted((file.name, file.read_bytes()) for file in copy.iterdir())
    served = start(documents=documents, written=() if place == "in the folder" else (copy,))
    found = listed(served)
    one = found[copy.name]
    assert len(found) == 1 and one["status"] == "ready" and not one["own"]
    assert one["bytes"] == one["characters"] == len(book) and one["tokens"] == one["tokens_read"] > 0
    assert KEY in said(served.ask(QUESTION, document=one["id"], max_tokens=8))
    assert served.http.get(f"/v1/documents/{one['id']}/text").json()["text"] == book
    for refusal in (
        served.http.delete(f"/v1/documents/{one['id']}"),
        served.http.patch(f"/v1/documents/{one['id']}", json={"name": "x"}),
    ):
        assert refusal.status_code == 409 and refusal.json()["error"]["code"] == "document_not_own"
    served.close()
    assert sorted((file.name, file.read_bytes()) for file in copy.iterdir()) == before
    again = start(documents=documents, written=(copy,))
    assert listed(again)[copy.name]["id"] == one["id"]


@pytest.mark.parametrize("spoil", ["method", "damaged", "unfinished", "empty", "too long"])
def test_one_that_cannot_be_served_is_listed_with_the_reason(start, written, of_dca, tmp_path, caplog, spoil):
    documents, name = tmp_path / "documents", f"{spoil}.longspan"
    shutil.copytree(of_dca if spoil == "method" else written, documents / name)
    shutil.copytree(written, documents / "good")
    if spoil == "damaged":
        (documents / name / "tokens-0000.safetensors").unlink()
    elif spoil == "unfinished":
        (documents / name / "manifest.json").rename(documents / name / "reading.json")
    elif spoil == "empty":
        shutil.rmtree(documents / name)
        (documents / name).mkdir()
    caplog.set_level(logging.ERROR)
    found = listed(start(documents=documents, **({"max_length": 600} if spoil == "too long" else {})))
    assert found[name]["status"] == "failed" and found["good"]["status"] == (
        "failed" if spoil == "too long" else "ready"
    )
    expected = {
        "method": "longspan serve --method dca", "damaged": "tokens-0000.safetensors is not there",
        "unfinished": "its reading is unfinished", "empty": "not a document", "too long": "at most 600",
    }  # fmt: skip
    assert expected[spoil] in found[name]["error"] and expected[spoil] in caplog.text
    assert str(documents / name) in caplog.text and "Traceback" not in caplog.text


def hosts_of(monkeypatch) -> list:
    hosts = []
    monkeypatch.setattr("longspan.serve.run.serve", lambda host, sockets, demo: hosts.append(host))
    return hosts


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("given", "method"), [([], "dca"), (["--method", "esa"], "esa")])
def test_the_method_is_that_of_the_documents(run, monkeypatch, of_dca, tmp_path, named, given, method):  # noqa: F811
    hosts = hosts_of(monkeypatch)
    where = [of_dca] if named else ["--documents", of_dca.parent]
    ran = run("serve", "bundled", *where, "--port", "0", "--length", "4096", *given)
    assert ran.code == 0, ran.err
    assert hosts[0].attachment.report.method.name == method
    assert (f"{of_dca}: dca" in ran.err) is (method == "dca")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bundled", "{tmp}/none"], "none: this document does not exist"),
        (["bundled", "{tmp}"], "this folder is not a document"),
        (["{doc}"], "is a document: name its model"),
        (["bundled", "--documents", "{doc}"], "is a document: name it without --documents"),
    ],
)
def test_what_is_no_document_is_refused_before_the_model_is_loaded(
    run,  # noqa: F811
    monkeypatch,
    of_dca,
    tmp_path,
    args,
    words,
):
    monkeypatch.setattr("longspan.cli.serve.load_model", lambda *_, **__: pytest.fail("it loads the model"))
    filled = [arg.format(tmp=tmp_path, doc=of_dca) for arg in args]
    refused(run("serve", *filled, "--port", "0", "--quiet"), words)


def test_what_a_server_read_is_asked_in_a_terminal(start, book, run, tmp_path):  # noqa: F811
    served = start(documents=tmp_path / "kept")
    id = served.add(book, "walk.txt")
    place = tmp_path / "kept" / id
    ran = run("ask", place, QUESTION, "--max-new-tokens", "8")
    assert ran.code == 0 and KEY in ran.out, ran.err
    assert run("verify", place).code == 0
    ran = run("documents", tmp_path / "kept")
    assert id in ran.out and "walk.txt" in ran.out and "whole" in ran.out


def test_passages_lie_where_the_text_is_shown(start, bundled, book, tmp_path):
    """Also in the second of several texts, whose places are counted from the first one's beginning."""
    path = tmp_path / "two.longspan"
    longspan.read(*bundled, [("one.txt", book[:2000]), ("two.txt", book[2000:])], out=path)
    served = start(documents=tmp_path / "documents", written=(path,))
    one = listed(served)["two.longspan"]
    answer = served.ask(QUESTION, document=one["id"], max_tokens=6, passages=True)
    text = served.http.get(f"/v1/documents/{one['id']}/text").json()["text"]
    found = answer["choices"][0]["passages"]["answer"]
    assert KEY in said(answer) and KEY in found[0]["text"]
    assert all(text[p["start"] : p["end"]] == p["text"] for p in found)


def test_a_document_of_another_server_keeps_its_name(start, served, document, tmp_path):
    name = served.document(document)["name"]
    copy = tmp_path / "copied"
    shutil.copytree(served.host.library.get(document).folder, copy)
    other = start(documents=tmp_path / "documents", written=(copy,))
    assert not listed(other)[name]["own"]
