"""What is kept of a reading that was not finished is checked before it is taken up."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager

import pytest

import longspan
from longspan.documents.folder import Folder
from longspan.errors import DocumentError
from support.killed_documents import contents

ASK = "Who is the narrator?"


class Enough(Exception):
    """Stands for a process that ends here."""


@pytest.fixture
def begun(fresh, tokenizer, text, tmp_path):
    """A folder with the first 600 tokens of a reading."""

    def done(stop, total):
        if stop >= 600:
            raise Enough

    with pytest.raises(Enough):
        longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=tmp_path / "a.longspan", done=done)
    return tmp_path / "a.longspan"


def altered(path):
    with (path / "data-0000.bin").open("r+b") as file:
        file.write(b"\x11" * 4_000)


def linked(path):
    (path / "data-0000.bin").rename(path.parent / "away")
    (path / "data-0000.bin").symlink_to(path.parent / "away")


def edited(change):
    """``reading.json`` with other values and a checksum of them."""

    def edit(path):
        held = json.loads((path / "reading.json").read_text())
        del held["sha256"]
        change(held)
        own = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
        (path / "reading.json").write_text(json.dumps({"sha256": own, **held}))

    return edit


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: os.truncate(path / "data-0000.bin", 4096), "data-0000.bin has 4,096 bytes"),
        (altered, "data-0000.bin is not what was written"),
        (lambda path: (path / "data-0000.bin").unlink(), "data-0000.bin is not there"),
        (linked, "data-0000.bin is a link"),
        (edited(lambda held: held.update(files={})), "names the files"),
        (edited(lambda held: [s.update(heads=2**20) for s in held["streams"]]), "data-0000.bin has"),
        (edited(lambda held: held["segments"][0].update(room=2**40)), "segment 0"),
        (
            edited(lambda held: held["facts"].update(prefill_chunk=0)),
            "its manifest.facts.prefill_chunk is 0, which is invalid",
        ),
    ],
    ids=["cut", "altered", "missing", "link", "no files", "absurd heads", "absurd room", "no prefill chunk"],
)
def test_what_was_spoiled_is_refused(begun, fresh, tokenizer, text, spoil, said):
    spoil(begun)
    with pytest.raises(DocumentError, match=f"the saved part of its reading cannot be used.*{said}.*remove the folder"):
        longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=begun)
    assert not (begun / "manifest.json").exists()


def test_what_comes_after_the_last_whole_piece_is_written_anew(begun, fresh, tokenizer, text):
    """A prefill chunk that was broken off while it was written is no damage."""
    kept = json.loads((begun / "reading.json").read_text())
    size = (begun / "data-0000.bin").stat().st_size
    heads = sum(stream["heads"] for stream in kept["streams"])
    with (begun / "data-0000.bin").open("r+b") as file:
        file.seek(size - size // heads // 8)  # the room that the last stream has for what is not read yet
        file.write(b"\x11" * 64)
    document = longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=begun)
    assert document.ask(ASK, 6).tokens == longspan.read(fresh(), tokenizer, text, prefill_chunk=300).ask(ASK, 6).tokens


def test_another_process_finishes_first(fresh, tokenizer, text, tmp_path, monkeypatch):
    """It did so after this one saw no document, and before this one had the folder to itself."""
    path, alone = tmp_path / "a.longspan", Folder.alone

    @contextmanager
    def late(self):
        monkeypatch.setattr(Folder, "alone", alone)
        longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=path)
        with alone(self):
            yield

    monkeypatch.setattr(Folder, "alone", late)
    prefill_chunks = []
    document = longspan.read(
        fresh(), tokenizer, text, prefill_chunk=300, out=path, done=lambda *x: prefill_chunks.append(x)
    )
    assert not prefill_chunks and document.text == text, "what is there is opened"
    assert longspan.documents.verify(path).facts.tokens == document.tokens


@pytest.mark.parametrize("left", ["all", "the state"])
def test_what_lies_beside_a_finished_reading_goes(begun, fresh, tokenizer, text, left):
    """A process may end after the manifest is there and before all that it replaces is removed."""
    kept = {path.name: path.read_bytes() for path in begun.iterdir() if path.name.startswith("reading")}
    assert len(kept) == 2
    longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=begun)
    whole = contents(begun)
    for name, data in kept.items():
        if left == "all" or name != "reading.json":
            (begun / name).write_bytes(data)
    longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=begun)
    assert contents(begun) == whole


def test_the_same_call_with_the_same_model_after_one_that_failed(fresh, tokenizer, text, tmp_path):
    """What holds the error, as an interactive session does, holds neither the folder nor the method on the model."""
    model, place, held = fresh(), tmp_path / "a.longspan", []

    def read(done=None):
        return longspan.read(model, tokenizer, text, method="dca", prefill_chunk=300, out=place, done=done)

    def stop(*_):
        raise Enough

    place.mkdir()
    (place / "strange").touch()
    for done in (None, stop):
        with pytest.raises((DocumentError, Enough)) as failed:
            read(done)
        held.append(failed)
        (place / "strange").unlink(missing_ok=True)
        assert model.config._attn_implementation != "longspan", "as it was"
    assert read().tokens and held
