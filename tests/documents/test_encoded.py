"""Tokens and text of a saved document are read, and their checksums compared, when they are first needed."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import longspan
from longspan.documents.folder import Folder
from longspan.errors import DocumentError

ASK = "Who is the narrator?"


@pytest.fixture
def read_files(monkeypatch):
    """The names of the files whose bytes are read."""
    names, read = [], Folder.read_whole

    def spy(self, name, *args):
        names.append(name)
        return read(self, name, *args)

    monkeypatch.setattr(Folder, "read_whole", spy)
    return names


@pytest.fixture
def copied(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "a.longspan"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_opening_reads_nothing_that_grows_with_the_text(copied, fresh, tokenizer, read_files):
    document = longspan.Document.open(copied, fresh(), tokenizer)
    assert document.tokens > 600 and repr(document)
    assert set(read_files) == {"manifest.json", "state-0001.safetensors"}
    document.ask(ASK, 2)
    assert "tokens-0001.safetensors" in read_files and "text-0001.txt" not in read_files
    assert document.text.endswith("it ended.") and read_files[-1] == "text-0001.txt"
    known = list(read_files)
    document.ask(ASK, 2, passages=True)
    assert read_files == known, "each is read once"


@pytest.mark.parametrize(("name", "at"), [("tokens-0001.safetensors", -1), ("text-0001.txt", 10)])
def test_what_is_read_late_is_checked_then(copied, fresh, tokenizer, name, at):
    flip(copied / name, at)
    document = longspan.Document.open(copied, fresh(), tokenizer)
    with pytest.raises(DocumentError, match=f"{name} is not what was written"):
        document.ask(ASK, 2, passages=True)
    with pytest.raises(DocumentError, match=f"{name} is not what was written"):
        longspan.Document.open(copied, fresh(), tokenizer, verify=True)


@pytest.mark.parametrize("name", ["tokens-0001.safetensors", "text-0001.txt"])
def test_sizes_are_compared_at_opening(copied, fresh, tokenizer, name):
    (copied / name).write_bytes((copied / name).read_bytes() + b"x")
    with pytest.raises(DocumentError, match=f"{name} has .* bytes instead of the"):
        longspan.Document.open(copied, fresh(), tokenizer)


def test_what_was_opened_stays_when_the_files_are_replaced(copied, fresh, tokenizer):
    """Nothing of it was read yet when another process appends."""
    opened, other = (longspan.Document.open(copied, fresh(), tokenizer) for _ in range(2))
    other.append("\nMore.")
    other.save(copied)
    assert not (copied / "tokens-0001.safetensors").exists()
    assert opened.text.endswith("it ended.") and opened.tokens == len(opened.contents.ids) < other.tokens


def test_threads_that_need_it_first_read_it_once(copied, fresh, tokenizer, read_files):
    document = longspan.Document.open(copied, fresh(), tokenizer)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: document.text, range(8)))
        counts = list(pool.map(lambda _: len(document.contents.ids), range(8)))
    assert set(texts) == {document.text} and set(counts) == {document.tokens}
    assert read_files.count("text-0001.txt") == read_files.count("tokens-0001.safetensors") == 1


def test_what_was_refused_is_refused_again(copied, fresh, tokenizer):
    flip(copied / "text-0001.txt", 10)
    document = longspan.Document.open(copied, fresh(), tokenizer)
    for _ in range(2):
        with pytest.raises(DocumentError, match="is not what was written"):
            _ = document.text
