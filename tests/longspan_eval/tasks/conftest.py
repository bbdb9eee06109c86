"""Tokenizers of three kinds: the bundled one, one token a byte, and one that puts a space before a text."""

from __future__ import annotations

import string

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from longspan.bundled import heldout_text


@pytest.fixture(scope="session")
def byte_tokenizer(bytewise):
    """Byte-level, no merges, no special tokens."""
    return bytewise


@pytest.fixture(scope="session")
def spaced_tokenizer():
    """As Llama 2's: words with the space before them, one put before every text, ``<s>`` at its start."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    alphabet = sorted({*string.printable, "★", *heldout_text()})
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>", "<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([heldout_text()[:40_000]], trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")


@pytest.fixture(params=["bundled", "bytes", "spaced"])
def any_tokenizer(request, tokenizer, byte_tokenizer, spaced_tokenizer):
    return {"bundled": tokenizer, "bytes": byte_tokenizer, "spaced": spaced_tokenizer}[request.param]
