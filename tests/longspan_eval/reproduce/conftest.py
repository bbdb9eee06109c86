"""A session with a random model, small enough to run every table."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.subject import Subject
from support.small_llama import small_llama

WINDOW = 128


def random_model(eos=None):
    return small_llama(WINDOW, num_attention_heads=4, num_key_value_heads=2, eos_token_id=eos)


@pytest.fixture(scope="session")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.fixture(scope="session")
def at_window(tokenizer):
    """Sessions at any window, of a model that is never run."""

    def make(window, **more):
        model = random_model()
        subject = Subject(window, "a" * 64, "b" * 64, "tiny", "float32", 1000)
        return PaperSession(model, tokenizer, subject, **more)

    return make


@pytest.fixture
def session(tokenizer):
    """A session that runs: one prompt a cell, nothing beyond four windows."""
    model = random_model(eos=list(range(3, 300)))  # so that its answers end soon
    return PaperSession(model, tokenizer, Subject.of(model, tokenizer), scale="quick", samples=1, max_length=4 * WINDOW)


@pytest.fixture
def at_4096(at_window):
    """At the window of Llama-2, which is LongHeads' and DCA's."""
    return at_window(4096, windows=(4096,))


@pytest.fixture
def unbuilt(monkeypatch):
    """No prompt is made to see that a length will do: each would take a good part of a second."""
    monkeypatch.setattr(PaperSession, "unbuilt", lambda *_: None)
