"""An append that is stopped is taken up again where it was, and what is in a document is not appended again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import longspan
from longspan.documents.appending import append_texts
from longspan.documents.folder import Folder
from longspan.errors import DocumentError

ASK = "Who is the narrator?"
MORE = [("one.txt", "The narrator is Ishmael. " * 60), ("two.txt", "The ship sank on Tuesday. " * 30)]


class Enough(Exception):
    """Stands for a process that ends here."""


@pytest.fixture
def path(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "a.longspan"))


def contents_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def stopped(path, fresh, tokenizer, after, texts=MORE):
    """An append that ends after so many prefill chunks."""
    prefill_chunks = []

    def done(stop, total):
        prefill_chunks.append(stop)
        if len(prefill_chunks) == after:
            raise Enough

    with pytest.raises(Enough):
        append_texts(path, fresh(), tokenizer, texts, done=done)
    return prefill_chunks


def test_it_goes_on_where_it_was_stopped(path, fresh, tokenizer, tmp_path):
    whole = Path(shutil.copytree(path, tmp_path / "whole.longspan"))
    answer = longspan.Document.open(path, fresh(), tokenizer).ask(ASK, 6)
    first = stopped(path, fresh, tokenizer, 2)
    before = longspan.Document.open(path, fresh(), tokenizer, verify=True)
    assert before.ask(ASK, 6).tokens == answer.tokens, "the document before is there until the append ends"
    second, third = stopped(path, fresh, tokenizer, 1), []
    longer = append_texts(path, fresh(), tokenizer, MORE, done=lambda stop, total: third.append(stop))
    prefill_chunks = first + second + third
    assert prefill_chunks == sorted(set(prefill_chunks)) and third, "no prefill_chunk is read twice"
    append_texts(whole, fresh(), tokenizer, MORE)
    assert contents_of(path) == contents_of(whole)
    assert longer.ask(ASK, 6).tokens == longspan.Document.open(whole, fresh(), tokenizer).ask(ASK, 6).tokens


def test_every_way_to_add_a_text_puts_an_empty_line_before_it(path, fresh, tokenizer, text):
    """Read with the others, appended to the folder, and appended in memory: the same tokens, text and sources."""
    before = longspan.Document.open(path, fresh(), tokenizer)
    in_memory = before.fork()
    for name, added in MORE:
        in_memory.append(added, source=name)
    in_folder = append_texts(path, fresh(), tokenizer, MORE)
    assert in_memory.text == f"{before.text}\n\n{MORE[0][1]}\n\n{MORE[1][1]}" == in_folder.text
    assert torch.equal(in_memory.contents.ids, in_folder.contents.ids)
    assert in_memory.contents.sources == in_folder.contents.sources
    at_once = longspan.read(fresh(), tokenizer, [("book.txt", text), *MORE])
    one_by_one = longspan.read(fresh(), tokenizer, [("book.txt", text)])
    for name, added in MORE:
        one_by_one.append(added, source=name)
    assert torch.equal(one_by_one.contents.ids, at_once.contents.ids)


def test_tokens_are_appended_as_they_are(path, fresh, tokenizer):
    document = longspan.Document.open(path, fresh(), tokenizer)
    ids = torch.tensor([5, 9, 5])
    longer = document.fork()
    longer.append_tokens(ids)
    assert torch.equal(longer.contents.ids, torch.cat((document.contents.ids, ids)))


@pytest.mark.parametrize("ends_in", ["finish", "tidy"])
def test_a_kill_around_the_new_manifest(path, fresh, tokenizer, monkeypatch, ends_in, tmp_path):
    """Before it is there the append is taken up, after it was put there nothing is left to do."""

    def ends(*args):
        raise Enough

    with monkeypatch.context() as patched:
        patched.setattr(Folder, ends_in, ends)
        with pytest.raises(Enough):
            append_texts(path, fresh(), tokenizer, MORE)
    prefill_chunks = []
    document = append_texts(path, fresh(), tokenizer, MORE, done=lambda *now: prefill_chunks.append(now))
    assert not prefill_chunks and document.text.count(MORE[1][1]) == 1
    names = {file.name for file in path.iterdir()}
    assert not [name for name in names if name.startswith("reading")]
    assert names == {"manifest.json"} | Folder.named(Folder(path).manifest())
    assert longspan.documents.verify(path).facts.tokens == document.tokens
    append_texts(path, fresh(), tokenizer, [("three.txt", "And the end.")])


def test_the_same_texts_are_not_appended_again(path, fresh, tokenizer):
    append_texts(path, fresh(), tokenizer, MORE)
    before = contents_of(path)
    append_texts(path, fresh(), tokenizer, MORE)
    assert contents_of(path) == before
    longer = append_texts(path, fresh(), tokenizer, [("three.txt", MORE[1][1])])
    assert longer.text.count(MORE[1][1]) == 2, "another file with the same text is another text"


def test_places_are_counted_in_the_text_that_was_appended(path, fresh, tokenizer):
    document = append_texts(path, fresh(), tokenizer, MORE)
    assert [document.text[s.start : s.stop] for s in document.contents.sources[-2:]] == [text for _, text in MORE]
    assert document.text.endswith(f"\n\n{MORE[0][1]}\n\n{MORE[1][1]}")


def test_another_text_than_the_one_that_was_stopped(path, fresh, tokenizer):
    stopped(path, fresh, tokenizer, 1)
    with pytest.raises(DocumentError, match="of another text .*one.txt.* now .*other.txt.*remove reading.json") as said:
        append_texts(path, fresh(), tokenizer, [("other.txt", "Else.")])
    assert "{" not in str(said.value) and "[" not in str(said.value)
    (path / "reading.json").unlink()
    assert append_texts(path, fresh(), tokenizer, [("other.txt", "Else.")]).text.endswith("Else.")


def test_a_document_that_changed_meanwhile(path, fresh, tokenizer):
    stopped(path, fresh, tokenizer, 1)
    document = longspan.Document.open(path, fresh(), tokenizer)
    document.append("Something else.")
    document.save(path)
    assert append_texts(path, fresh(), tokenizer, MORE).text.endswith(MORE[1][1]), "a saving ends what was stopped"


def test_a_document_that_grows_while_it_is_opened(path, fresh, tokenizer, monkeypatch):
    """The files that the manifest named are gone when they are read, and the next one names others."""
    with monkeypatch.context() as patched:

        def grows(folder):
            patched.undo()
            before = folder.manifest()
            append_texts(path, fresh(), tokenizer, MORE[1:])
            return before

        patched.setattr(Folder, "manifest", grows)
        assert longspan.Document.open(path, fresh(), tokenizer).text.endswith(MORE[1][1])


def test_what_was_kept_of_it_is_checked(path, fresh, tokenizer):
    stopped(path, fresh, tokenizer, 1)
    name = next(one["name"] for one in json.loads((path / "reading.json").read_text())["streams"])
    with (path / "data-0002.bin").open("r+b") as file:
        file.write(b"\x11" * 4_000)
    with pytest.raises(DocumentError, match=r"data-0002.bin is not what was written.*remove reading.json") as said:
        append_texts(path, fresh(), tokenizer, MORE)
    assert name not in str(said.value)


def test_nothing_to_append(path, fresh, tokenizer, tmp_path):
    with pytest.raises(DocumentError, match="no text to append"):
        append_texts(path, fresh(), tokenizer, [("empty.txt", "")])
    with pytest.raises(DocumentError, match="this document does not exist"):
        append_texts(tmp_path / "none", fresh(), tokenizer, MORE)
