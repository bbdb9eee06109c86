"""Model folders whose files are wrong or of two models: one line each, before anything is computed."""

from __future__ import annotations

import json
import shutil
import struct

import pytest

import longspan
from longspan.bundled import FOLDER, load_bundled
from longspan.loading.models import load_tokenizer

pytestmark = pytest.mark.hostile


@pytest.fixture
def folder(tmp_path):
    for file in FOLDER.iterdir():
        if file.suffix in (".json", ".safetensors") and file.stem != "calibration":
            shutil.copy(file, tmp_path)
    return tmp_path


def changed(path, change):
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def refused(folder, *words, **options):
    with pytest.raises(longspan.LongspanError) as raised:
        model, _ = longspan.load(folder, device="cpu", quiet=True)
        longspan.extend(model, "dca", **options)
    said = str(raised.value)
    assert "\n" not in said and all(word in said for word in words), said


@pytest.mark.parametrize("size", [2 * 2**30, 2**63, 2**64 - 1, 0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_a_header_of_weights_with_another_size(folder, size, whole):
    """``whole``: the file is as long as it says, as a sparse file can be."""
    path = folder / "model.safetensors"
    if whole and size > 2**32:
        pytest.skip("no file has that size")
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", size))
        if whole:
            file.truncate(max(size + 108, 200))
    refused(folder, str(path), "not a complete safetensors file")


@pytest.mark.parametrize("window", [0, -1, 10**18, 2**31 + 1, 1.5, "512", None, True, [512]])
def test_a_config_with_another_window(folder, window):
    changed(folder / "config.json", lambda said: said.update(max_position_embeddings=window))
    named = "window" if window == 10**18 or window == 2**31 + 1 else f"{window!r}" if window is not None else "NoneType"
    refused(folder, named)
    if isinstance(window, int) and window is not True:
        model, _ = longspan.load(folder, device="cpu", quiet=True)
        assert longspan.extend(model, "dca", window=512).window == 512


def more_words(said):
    words = said["model"]["vocab"]
    words.update({f"zz{n}": len(words) + n for n in range(3_000)})


def a_word_beyond(said):
    said["added_tokens"].append(
        {"id": 5_000, "content": "hello", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": False}
    )  # fmt: skip


@pytest.mark.parametrize("change", [more_words, a_word_beyond])
def test_the_tokenizer_of_another_model(folder, change):
    changed(folder / "tokenizer.json", change)
    refused(folder, str(folder), "does not fit the model", "2,048")


def test_a_special_token_that_was_added_to_the_tokenizer_alone(folder):
    """Many folders on the hub have a padding token without an embedding, and no text ever has it."""

    def padding(said):
        a_word_beyond(said)
        said["added_tokens"][-1] |= {"content": "<padding>", "special": True}

    changed(folder / "tokenizer.json", padding)
    assert len(load_tokenizer(str(folder), load_bundled()[0])) > 2_048
