"""Files that are broken or hold something else: one line each, which names the file, and nothing is kept."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import longspan
from longspan.install import pip_install
from support.gguf_files import Kind, random_model, tensors, write


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf") / "whole.gguf", random_model("llama"), "llama", kind=Kind.Q8_0)


def cut(share):
    return lambda data: data[: int(len(data) * share)]


def patched(at, form, value):
    def change(data):
        changed = bytearray(data)
        struct.pack_into(form, changed, at, value)
        return bytes(changed)

    return change


def first_tensor(field):
    """Patch a field of the first tensor's entry: ``dims``, ``size``, ``kind`` or ``offset``."""

    def change(data):
        at = data.index(b"token_embd.weight") + len("token_embd.weight")
        place, form, value = {
            "dims": (0, "<I", 9),
            "size": (4, "<Q", 2**40),
            "smaller": (12, "<Q", 512),
            "kind": (20, "<I", 999),
            "another": (20, "<I", int(Kind.Q4_0)),
            "offset": (24, "<Q", 2**33),
        }[field]
        return patched(at + place, form, value)(data)

    return change


def key_value(key, value):
    return lambda data: patched(data.index(key.encode()) + len(key) + 4, "<I", value)(data)


def not_finite(data):
    changed = bytearray(data)
    changed[-66:] = b"\xff\x7f" * 33  # the scale of a block of Q8_0 is an fp16
    return bytes(changed)


BROKEN = {
    "empty": (cut(0), "is not a GGUF file"),
    "a text": (lambda data: b"It was a dark and stormy night.", "is not a GGUF file"),
    "a zip": (lambda data: b"PK\x03\x04" + data[4:], "is not a GGUF file"),
    "four bytes": (lambda data: data[:4], "cut off or damaged"),
    "an old version": (patched(4, "<I", 1), "v1"),
    "big-endian": (patched(4, ">I", 3), "GGUF v"),
    "cut in the metadata": (lambda data: data[:300], "cut off or damaged"),
    "cut in the vocabulary": (lambda data: data[:9000], "cut off or damaged"),
    "cut in the table": (lambda data: data[: data.index(b"token_embd.weight") + 10], "cut off or damaged"),
    "cut in the tensors": (cut(0.9), "cut off"),
    "without its last bytes": (lambda data: data[:-200], "cut off"),
    "more metadata than there is": (patched(16, "<Q", 2**60), "cut off or damaged"),
    "more tensors than there are": (patched(8, "<Q", 2**60), "cut off or damaged"),
    "nine dimensions": (first_tensor("dims"), "cut off or damaged"),
    "too many columns": (first_tensor("size"), "cut off or damaged"),
    "too few rows": (first_tensor("smaller"), ("token", "shape")),
    "an unknown kind": (first_tensor("kind"), "cut off or damaged"),
    "another kind": (first_tensor("another"), "model.gguf"),
    "an offset beyond the end": (first_tensor("offset"), "cut off"),
    "numbers that are not finite": (not_finite, "not finite"),
    "more layers than tensors": (key_value("llama.block_count", 3), "lacks"),
    "fewer layers than tensors": (key_value("llama.block_count", 1), "places"),
    "other heads": (key_value("llama.attention.head_count", 8), ("head", "shape")),
    "no heads": (key_value("llama.attention.head_count", 0), "cannot load"),
    "another width": (key_value("llama.embedding_length", 128), "shape"),
}


def refused(file, *words, weights="as-is"):
    with pytest.raises(longspan.LongspanError) as raised:
        longspan.load(file, device="cpu", quiet=True, weights=weights)
    said = str(raised.value)
    assert "\n" not in said and str(file) in said and all(word in said for word in words), said


@pytest.mark.parametrize("weights", ["fp32", "as-is"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file(tmp_path, whole, cache, name, weights):
    change, words = BROKEN[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(change(whole.read_bytes()))
    refused(file, words if isinstance(words, str) else words[weights == "as-is"], weights=weights)
    assert not list(cache.glob("copies/*/*"))


FOREIGN = {
    "an architecture that nobody knows": ({"general.architecture": "unheard-of"}, "unheard-of"),
    "no window": ({"llama.context_length": None}, "window"),
    "an adapter": ({"general.type": "adapter"}, "adapter"),
    "a part": ({"split.count": 3}, "3 parts"),
    "experts": ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "expert"),
    "a sliding window": ({"llama.attention.sliding_window": 64}, "sliding_window"),
    "scaled logits": ({"llama.logit_scale": 0.5}, "logit_scale"),
    "partial rotation": ({"llama.rope.dimension_count": 8}, "model.gguf"),
    "another scaling": ({"llama.rope.scaling.type": "longrope"}, "longrope"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_the_reader_does_not_read(tmp_path, cache, name):
    stated, words = FOREIGN[name]
    refused(write(tmp_path / "model.gguf", random_model("llama"), "llama", stated=stated), words)
    assert not list(cache.glob("copies/*/*"))


def test_tensors_that_are_missing_or_have_no_place(tmp_path):
    model = random_model("llama")
    refused(write(tmp_path / "a.gguf", model, "llama", skip=("blk.1.ffn_up.weight",)), "lacks", "up_proj")
    refused(write(tmp_path / "b.gguf", model, "llama", more={"blk.0.attn_q.bias": np.ones(64)}), "places")
    transposed = {"blk.0.ffn_up.weight": tensors(model, "llama")["blk.0.ffn_up.weight"].T}
    refused(write(tmp_path / "c.gguf", model, "llama", more=transposed), "up_proj")


def test_factors_of_frequencies_that_are_not_llama_3s(tmp_path):
    factors = {"rope_freqs.weight": np.linspace(1, 3, 8)}
    refused(write(tmp_path / "model.gguf", random_model("llama"), "llama", more=factors), "rope_freqs")


def test_a_tokenizer_that_the_reader_does_not_know(tmp_path):
    refused(write(tmp_path / "model.gguf", random_model("llama"), "llama", pre="chatglm-bpe"), "chatglm-bpe")


def test_a_file_that_is_not_there(tmp_path):
    refused(tmp_path / "none.gguf", "does not exist")
    (tmp_path / "folder.gguf").mkdir()
    refused(tmp_path / "folder.gguf", "config.json")


def test_packages_that_are_missing(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("longspan.loading.gguf.find_spec", lambda name: None)
    refused(Path(whole), pip_install("gguf"))


def test_a_model_larger_than_memory(whole, monkeypatch):
    monkeypatch.setattr("longspan.machine.memory.free_memory", lambda device: 1000)
    refused(whole, "memory", "--weights as-is", weights="fp32")
    refused(whole, "memory")
