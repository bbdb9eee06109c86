"""Small models, a tokenizer and a text; documents that were saved, to spoil copies of."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import longspan
from longspan.bundled import FOLDER, heldout_text
from longspan.documents import fingerprint
from support.hf_models import make

METHOD = "longheads:score=bounds"  # whose index lies in a document, too
VOCABULARY = json.loads((FOLDER / "config.json").read_text())["vocab_size"]


@pytest.fixture(autouse=True)
def remembered(tmp_path_factory, monkeypatch):
    """Hashes of weights are remembered in a folder of the test's own."""
    folder = tmp_path_factory.mktemp("remembered")
    monkeypatch.setattr(fingerprint, "weights_of", partial(fingerprint.weights_of, cache=folder / "weights.json"))


@pytest.fixture(scope="module")
def model():
    """Of the small ones, whose ids are random."""
    return make("llama")


def make_reader(seed: int = 0, dtype: torch.dtype = torch.float32, **sizes) -> LlamaForCausalLM:
    """A random Llama for the bundled tokenizer, window 128."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "initializer_range": 0.5,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**config, **sizes})).to(dtype).eval()


@pytest.fixture
def reader():
    return make_reader


@pytest.fixture(scope="session")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.fixture(scope="session")
def folder(tmp_path_factory, tokenizer):
    """The folder of such a model."""
    path = tmp_path_factory.mktemp("llama")
    make_reader().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def fresh(folder):
    """Loads the model of that folder anew."""
    return lambda **kwargs: LlamaForCausalLM.from_pretrained(folder, **kwargs).eval()


@pytest.fixture(scope="session")
def text():
    """A few thousand characters of prose."""
    return heldout_text()[:4_000]


@pytest.fixture(scope="session")
def saved(tmp_path_factory, folder, tokenizer, text):
    """A document of two segments under LongHeads, to copy."""
    path = tmp_path_factory.mktemp("saved") / "book.longspan"
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    document = longspan.read(model, tokenizer, [("book.txt", text)], method=METHOD, prefill_chunk=300)
    document.append("\nAnd then it ended.", source="end.txt")
    document.save(path)
    return path


@pytest.fixture
def question():
    """Ids of a question for the small models."""
    return torch.randint(3, 128, (9,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def document(fresh, tokenizer, text):
    """That text, read under LongHeads in prefill chunks."""
    return longspan.read(fresh(), tokenizer, text, method=METHOD, prefill_chunk=300)
