"""Passages are recorded, and nothing is computed differently: in this thread, or in those that ask meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

import longspan
from longspan.documents.reading import forward
from longspan.documents.recorded import recorded

METHODS = [
    "longheads",
    "longheads:score=bounds",
    "longheads:share=head",
    "esa",
    "infllm",
    "lm-infinite:middle_top_k=5,from_layer=1",
]


@torch.inference_mode()
def logits(document, question):
    """Of a long question and of tokens after it, one by one."""
    cache = document.cache()
    found = [forward(document.model, document.prompt(question)[document.tokens :], cache)]
    for _ in range(30):
        found.append(forward(document.model, found[-1].argmax(-1), cache))
    return torch.cat(found)


@pytest.mark.parametrize("name", METHODS)
def test_two_threads_get_what_each_gets_alone(reader, tokenizer, text, name):
    document = longspan.read(reader(dtype=torch.bfloat16), tokenizer, text, method=name, prefill_chunk=300)
    question, found = f"{text[:900]} Who is the narrator?", []
    alone = logits(document, question)
    with recorded(document.model, document.attachment()):
        other = threading.Thread(target=lambda: found.append(logits(document, question)))
        other.start()
        own = logits(document, question)
        other.join()
    assert torch.equal(found[0], alone), "of the thread that records nothing"
    assert torch.equal(own, alone), "of the thread that records"
