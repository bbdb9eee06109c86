"""Small models with a tokenizer of bytes, and a text."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_models import make
from longspan.bundled import FOLDER, heldout_text


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    """Hashes of weights are remembered in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    """The bundled one, whose ids fit the bundled model alone."""
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return make("llama")


@pytest.fixture(scope="session")
def text():
    """Some pages of prose, longer than the bundled model's window."""
    return heldout_text()[:6_000]


@pytest.fixture
def question():
    """Ids of a question for the small models."""
    return torch.randint(3, 128, (9,), generator=torch.Generator().manual_seed(1))
