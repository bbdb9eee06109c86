"""Texts of PDF and HTML files are extracted in a process of its own, which time, memory and length limit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from longspan.errors import DocumentError
from longspan.text.extraction import Extractor
from support.pdf_files import page_of
from support.serving import chat, wait_for

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")


GOOD = page_of(b"BT /F 12 Tf 9 9 Td (Call me Ishmael.) Tj ET", packed=True)
# 60 kB of a file that no parser is done with without much memory.
LARGE = page_of(b"BT /F 12 Tf 9 9 Td " + b"(x) Tj " * 8_000_000 + b"ET", packed=True)
# One that no parser is done with soon: each page takes a second or so, and none is beyond a parser's own limits.
ENDLESS = page_of(b"BT /F 12 Tf 9 9 Td " + b"(x) Tj " * 100_000 + b"ET", pages=1000, packed=True)


@pytest.fixture
def extractor():
    """One with limits that a small file keeps."""
    made = []

    def new(**limits):
        made.append(Extractor(**{"seconds": 60, "memory": 1024 * MIB, "longest": MIB} | limits))
        return made[-1]

    yield new
    for one in made:
        one.close()


def text_of(extractor: Extractor, folder: Path, data: bytes, name: str = "x.pdf") -> str:
    path = folder / name
    path.write_bytes(data)
    try:
        return extractor.text_of(path)
    finally:
        assert [one.name for one in folder.iterdir()] == [name]


def test_texts(extractor, tmp_path):
    one = extractor()
    assert text_of(one, tmp_path, GOOD) == "Call me Ishmael."
    with pytest.raises(DocumentError, match=r"^not a PDF file that can be read"):
        text_of(one, tmp_path, b"no pdf")


def test_limits_beyond_those_of_the_system(tmp_path):
    page = tmp_path / "a.html"
    page.write_text("<p>hello")
    for seconds, memory in ((float("inf"), MIB**4), (1e12, 2048 * MIB)):
        one = Extractor(seconds=seconds, memory=memory, longest=MIB)
        assert one.text_of(page) == "hello"
        one.close()


def test_one_that_takes_too_long_is_ended(extractor, tmp_path):
    with pytest.raises(DocumentError, match="more than 2 seconds"):
        text_of(extractor(seconds=2, memory=64 * 1024 * MIB), tmp_path, ENDLESS)


@linux
@pytest.mark.parametrize(
    ("data", "name"),
    [pytest.param(LARGE, "x.pdf", marks=pytest.mark.long), (b"<p>" + b"<b>x</b>" * 2_000_000, "x.html")],
    ids=["pdf", "html"],  # an id of megabytes goes into the environment, where processes refuse it
)
def test_one_that_takes_too_much_memory_is_ended(extractor, tmp_path, data, name):
    with pytest.raises(DocumentError, match="209,715,200 bytes of memory"):
        text_of(extractor(memory=200 * MIB), tmp_path, data, name)


def test_a_text_that_is_too_long_is_refused(extractor, tmp_path):
    with pytest.raises(DocumentError, match="more than 1,000 bytes"):
        text_of(extractor(longest=1_000), tmp_path, b"<p>" + b"word " * 1_000, "x.html")


def test_the_key_of_the_server_is_not_given_on(extractor, tmp_path, monkeypatch):
    seen = []
    start = subprocess.Popen

    def spy(command, **options):
        seen.append(options["env"])
        return start(command, **options)

    monkeypatch.setenv("LONGSPAN_API_KEY", "secret")
    monkeypatch.setattr("longspan.text.extraction.subprocess.Popen", spy)
    text_of(extractor(), tmp_path, GOOD)
    (environment,) = seen
    assert "secret" not in environment.values() and "PATH" in environment


def test_closing_ends_what_runs(extractor, tmp_path):
    one, errors = extractor(seconds=3600), []

    def extract():
        with pytest.raises(DocumentError) as error:
            text_of(one, tmp_path, ENDLESS)
        errors.append(str(error.value))

    future = one.submit(extract)
    wait_for(lambda: one.pending)
    time.sleep(0.5)
    one.close()
    assert future.done() and len(errors) == 1 and "seconds" not in errors[0]


def upload(served):
    """Three threads that upload an endless file each, and what is answered to them."""
    answers = []

    def one():
        answers.append(served.http.post("/v1/documents", files={"file": ("x.pdf", ENDLESS)}))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    return threads, answers


@pytest.mark.long
def test_the_server_answers_while_a_hostile_file_is_extracted(start):
    served = start(extract_seconds=600)  # longer than this test may take: no file is given up while it asks
    threads, answers = upload(served)
    wait_for(lambda: served.host.extractor.pending == 3)
    served.ask("The road", max_tokens=2)
    served.add("A text without any markup.", "plain.txt")
    assert served.host.extractor.pending == 3 and not answers, "the answers waited for the files"
    served.host.extractor.close()
    for thread in threads:
        thread.join()
    assert len(answers) == 3 and all(400 <= answer.status_code < 600 for answer in answers)


def test_a_hostile_file_is_given_up_after_the_limit(start):
    served = start(extract_seconds=1)
    threads, answers = upload(served)
    plain = served.add("A text without any markup.", "plain.txt")
    for thread in threads:
        thread.join()
    assert len(answers) == 3
    for answer in answers:
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "not_a_text"
        assert "seconds" in answer.json()["error"]["message"]
    assert [path.name for path in served.host.settings.documents.iterdir()] == [plain]
    assert served.http.post("/v1/chat/completions", json=chat("x", max_tokens=1)).status_code == 200


def test_files_that_wait_count_for_the_queue(start):
    served, gate = start(max_queue=1), threading.Event()
    served.host.extractor.submit(gate.wait)
    response = served.http.post("/v1/documents", files={"file": ("x.pdf", GOOD)})
    gate.set()
    assert response.status_code == 429 and int(response.headers["Retry-After"]) >= 1


def test_what_a_killed_server_left_of_uploads_is_removed(start, tmp_path):
    place = tmp_path / "kept"
    place.mkdir()
    for name in (".upload-abc123", ".upload-abc123.pdf", ".upload-abc123.pdf.text"):
        (place / name).write_bytes(b"x")
    (place / "notes.txt").write_text("mine")
    start(documents=place)
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
