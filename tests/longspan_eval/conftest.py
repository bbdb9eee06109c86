"""A random model of the bundled one's vocabulary, small enough to run hundreds of times."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from support.small_llama import small_llama


@pytest.fixture(scope="session")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.fixture(scope="session")
def bytewise():
    """A tokenizer with a token a byte, and none before a text."""
    letters = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture
def model(tokenizer):
    return small_llama(256, vocab_size=len(tokenizer), eos_token_id=None)
