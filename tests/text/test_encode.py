"""The hash of a tokenizer follows all that decides how a text is encoded, and nothing else."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan.text.encode import tokenizer_hash


def fresh():
    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.mark.parametrize("change", ["a token", "a special one", "a template", "a rule"])
def test_the_tokenizers_hash_changes_with(change):
    tokenizer = fresh()
    before = tokenizer_hash(tokenizer)
    if change == "a token":
        tokenizer.add_tokens(["passkey"])
    elif change == "a special one":
        tokenizer.eos_token = "."
    elif change == "a template":
        tokenizer.chat_template = "{{ messages }}"
    else:
        from tokenizers.normalizers import Lowercase

        tokenizer.backend_tokenizer.normalizer = Lowercase()
    assert tokenizer_hash(tokenizer) != before


def test_using_a_tokenizer_does_not_change_its_hash():
    tokenizer = fresh()
    before = tokenizer_hash(tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        before = tokenizer_hash(tokenizer)
    tokenizer(["a text", "another that is longer"], padding=True, truncation=True, max_length=3)
    assert tokenizer_hash(tokenizer) == before
