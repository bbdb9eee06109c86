"""What is asked of a document that grew meanwhile, and the memory that an answer takes."""

from __future__ import annotations

import time

import pytest
import torch

import longspan
from longspan.documents import usage
from longspan.documents.conversation import Conversation

ASK = "Who is the narrator?"


@pytest.fixture
def document(fresh, tokenizer, text):
    return longspan.read(fresh(), tokenizer, text, piece=300)


def test_a_conversation_about_a_document_that_grew(document, monkeypatch):
    """What was cached is of the shorter document, and no prefix of what is asked now."""
    caches, generate = [], document.model.generate

    def spy(*args, past_key_values, **options):
        caches.append(past_key_values)
        return generate(*args, past_key_values=past_key_values, **options)

    monkeypatch.setattr(document.model, "generate", spy)
    talk = Conversation(document)
    talk.say(ASK, 6)
    document.append("\nAnd the ship sank on Tuesday." * 20)
    for question in ("And then?", "And now?"):
        talk.say(question, 6)
    assert caches[0] is not caches[1] is caches[2], "a prefix is not read again"
    found, ids = [], document.prompt(ASK)[None, document.tokens :]
    for cache in (document.cache(), caches[-1]):
        cache.crop(document.tokens)
        with torch.inference_mode():
            found.append(document.model(ids, past_key_values=cache).logits)
    assert torch.equal(*found)


def test_the_most_memory_is_seen_inside_of_a_forward(document):
    if document.ask(ASK, 1).peak_anonymous is None:
        pytest.skip("no /proc")
    held = []

    def spike(*_):
        if not held:
            held.append(torch.ones(200 << 20, dtype=torch.uint8))
            time.sleep(0.3)
            held[0] = None

    before = usage.anonymous()
    handle = document.model.model.layers[0].register_forward_pre_hook(spike)
    answer = document.ask(ASK, 2)
    handle.remove()
    assert answer.peak_anonymous > before + (150 << 20)
