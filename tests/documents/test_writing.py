"""What is written to a document's folder stays in it, is on the disk in order, and is what was read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load, save

import longspan
from longspan.documents import saving, segments
from longspan.documents.conversation import Conversation
from longspan.documents.folder import Folder
from longspan.errors import DocumentError

ASK = "Who is the narrator?"


class Enough(Exception):
    """Stands for a process that ends here."""


def ends(*args, **kwargs):
    raise Enough


@pytest.fixture
def calibrated(fresh, tokenizer, text):
    """A model and a calibration of it."""
    model = fresh()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    return model, longspan.calibrate(model, [ids], tokens=600, progress=False)


@pytest.mark.parametrize(
    "name", ["data-0001.bin", "tokens-0001.safetensors", "state-0001.safetensors", "text-0001.txt"]
)
@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_planted_link_is_not_written_through(fresh, tokenizer, text, tmp_path, name, plant):
    """A folder from somebody else holds names that a saving will write; what they lead to stays."""
    path, victim = tmp_path / "a.longspan", tmp_path / "victim"
    longspan.read(fresh(), tokenizer, text, out=path)
    victim.write_text("precious")
    plant(victim, path / name)
    document = longspan.Document.open(path, fresh(), tokenizer)
    document.append("\nMore.")
    document.save(path)
    assert victim.read_text() == "precious"
    assert not (path / name).is_symlink()
    assert longspan.Document.open(path, fresh(), tokenizer, verify=True).text.endswith("More.")


def test_a_planted_link_for_a_calibration(calibrated, tokenizer, text, tmp_path):
    model, calibration = calibrated
    path, victim = tmp_path / "a.longspan", tmp_path / "victim"
    victim.write_text("precious")
    path.mkdir()
    (path / "calibration.safetensors").symlink_to(victim)
    longspan.read(model, tokenizer, text, method="esa", calibration=calibration, out=path)
    assert victim.read_text() == "precious" and not (path / "calibration.safetensors").is_symlink()


def test_a_saving_that_ends_early_leaves_the_calibration(calibrated, fresh, tokenizer, text, tmp_path, monkeypatch):
    """The maps are equal, the settings beside them are not, and the process ends before the manifest is written."""
    model, calibration = calibrated
    path = tmp_path / "a.longspan"
    longspan.read(model, tokenizer, text, method="esa", calibration=calibration, out=path)
    other = fresh()
    longspan.extend(other, "esa", calibration=replace(calibration, tokens=calibration.tokens + 1))
    document = longspan.Document.open(path, other, tokenizer)
    document.append("\nMore.")
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "finish", ends)
        with pytest.raises(Enough):
            document.save(path)
    assert longspan.Document.open(path, fresh(), tokenizer, verify=True).text == text
    document.save(path)
    assert longspan.Document.open(path, fresh(), tokenizer, verify=True).text.endswith("More.")


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="a system without SEEK_DATA")
def test_a_file_system_that_knows_no_holes(fresh, tokenizer, text, tmp_path, monkeypatch):
    """Its bytes are copied; zeros would be given checksums of their own and pass every check."""
    document = longspan.read(fresh(), tokenizer, text)
    tokens, seek = document.ask(ASK, 6).tokens, os.lseek

    def cannot_tell(file, at, how):
        if how == os.SEEK_DATA:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return seek(file, at, how)

    monkeypatch.setattr(saving.os, "lseek", cannot_tell)
    document.save(tmp_path / "a.longspan")
    assert any((tmp_path / "a.longspan" / "data-0000.bin").read_bytes())
    assert longspan.Document.open(tmp_path / "a.longspan", fresh(), tokenizer).ask(ASK, 6).tokens == tokens


@pytest.mark.parametrize("written", [[b"a" * 5_000], [b"a" * 5_000, b"", b"b"]], ids=["a hole at its end", "between"])
def test_a_copy_is_as_long_as_the_file(tmp_path, monkeypatch, written):
    monkeypatch.setattr(saving, "COPIED_AT_ONCE", 2**12)
    with open(tmp_path / "a", "w+b") as source, open(tmp_path / "b", "w+b") as target:
        for n, part in enumerate(written):
            source.seek(n * 2**16)
            source.write(part)
        source.truncate(2**18)
        saving._copy(source.fileno(), target.fileno(), 2**18)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("name", ["manifest.json", "tokens-0000.safetensors"])
def test_a_size_is_not_believed(fresh, tokenizer, text, tmp_path, name):
    """A file of 40 GiB without any bytes, which its manifest names with that size."""
    path = tmp_path / "a.longspan"
    longspan.read(fresh(), tokenizer, text, out=path)
    held = json.loads((path / "manifest.json").read_text())
    os.truncate(path / name, 40 * 2**30)
    if name in held["files"]:
        held["files"][name]["size"] = 40 * 2**30
        rewritten(path, held)
    with pytest.raises(DocumentError, match=f"{name} has 42,949,672,960 bytes, and no more than"):
        longspan.documents.verify(path)


def test_a_state_of_holes_is_not_read(fresh, tokenizer, text, tmp_path):
    """As large as the document's size would allow, and nothing of it on the disk."""
    path, name = tmp_path / "a.longspan", "state-0000.safetensors"
    longspan.read(fresh(), tokenizer, text, out=path)
    held, most = json.loads((path / "manifest.json").read_text()), 2**24 + 64 * (path / "data-0000.bin").stat().st_size
    for size, said in ((16 * 2**30, f"no more than {most:,} can be right"), (most, "of which the disk has 0")):
        (path / name).write_bytes(b"")
        os.truncate(path / name, size)
        held["files"][name]["size"] = size
        rewritten(path, held)
        with pytest.raises(DocumentError, match=f"{name} has {size:,} bytes, .*{said}"):
            longspan.documents.verify(path)


def test_the_tokens_that_a_manifest_counts_are_those_of_its_segments(fresh, tokenizer, text, tmp_path):
    """Else a file of any size could be right for a document of so many tokens."""
    path, name = tmp_path / "a.longspan", "tokens-0000.safetensors"
    longspan.read(fresh(), tokenizer, text, out=path)
    held = json.loads((path / "manifest.json").read_text())
    os.truncate(path / name, 16 * 2**30)
    held["files"][name]["size"], held["facts"]["tokens"] = 16 * 2**30, 2**30
    held["segments"][0].update(stop=2**30, room=2**30)
    for stream, span in zip(held["streams"], held["segments"][0]["spans"], strict=True):
        if stream["name"] != "entries":
            span.update(stop=2**30, room=2**30)
    rewritten(path, held)
    with pytest.raises(DocumentError, match="data-0000.bin has .* bytes, but its manifest requires"):
        longspan.documents.verify(path)


def rewritten(path, held):
    """The manifest with these values and a checksum of them."""
    held.pop("sha256", None)
    own = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"sha256": own, **held}))


def test_ids_of_another_shape(fresh, tokenizer, text, tmp_path):
    path, name = tmp_path / "a.longspan", "tokens-0000.safetensors"
    longspan.read(fresh(), tokenizer, text, out=path)
    tensors = load((path / name).read_bytes())
    data = save({**tensors, "ids": tensors["ids"][None]})
    (path / name).write_bytes(data)
    held = json.loads((path / "manifest.json").read_text())
    held["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewritten(path, held)
    with pytest.raises(DocumentError, match="its tokens do not match"):
        longspan.documents.verify(path)


def test_a_file_that_is_cut_short_while_open(fresh, tokenizer, text, tmp_path):
    path = tmp_path / "a.longspan"
    document = longspan.read(fresh(), tokenizer, text, out=path)
    os.truncate(path / "data-0000.bin", 100)
    with pytest.raises(DocumentError, match="it was truncated"):
        document.ask(ASK, 2)


def test_a_conversation_about_a_file_that_is_cut_short(fresh, tokenizer, text, tmp_path):
    """Its cache shows the same file, which would end the process."""
    path = tmp_path / "a.longspan"
    talk = Conversation(longspan.read(fresh(), tokenizer, text, out=path))
    talk.say(ASK, 2)
    os.truncate(path / "data-0000.bin", 100)
    with pytest.raises(DocumentError, match="it was truncated"):
        talk.say("And then?", 2)


@pytest.mark.parametrize("kind", ["read", "save"])
def test_bytes_are_on_the_disk_before_they_are_named(fresh, tokenizer, text, tmp_path, monkeypatch, kind):
    """After a power cut a manifest names nothing that is not there: no segment was written to since it was synced."""
    path = tmp_path / "far" / "a.longspan"
    unsaved = longspan.read(fresh(), tokenizer, text, prefill_chunk=300) if kind == "save" else None
    fsync, move, put = os.fsync, os.replace, segments.write_at
    unsynced, folders, named = set(), set(), []

    def written(file, at, data):
        unsynced.add(os.fstat(file).st_ino)
        put(file, at, data)

    def synced(file):
        own = os.fstat(file)
        unsynced.discard(own.st_ino)
        if stat.S_ISDIR(own.st_mode):
            folders.add(own.st_ino)
        fsync(file)

    def moved(source, target):
        if Path(target).name in ("manifest.json", "reading.json"):
            named.append(Path(target).name)
            assert not unsynced, f"{target} names bytes that are not on the disk"
            assert {(tmp_path).stat().st_ino, path.parent.stat().st_ino} <= folders
        move(source, target)

    monkeypatch.setattr(segments, "write_at", written)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    if unsaved is None:
        longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=path)
    else:
        unsaved.save(path)
    assert named[-1] == "manifest.json" and ("reading.json" in named) == (kind == "read")
