"""Texts of which a tokenizer makes nothing, or what is no token of the model."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import longspan
from longspan.documents import verify
from longspan.documents.appending import append_texts
from longspan.documents.conversation import Conversation
from longspan.errors import DocumentError
from support.killed_documents import contents

HALF = "two \ud83d halves"
NO_CHARACTER = "at character 5 of .* is half of a surrogate pair"


@pytest.fixture
def words():
    """A tokenizer that drops all space, and has one token more than the models."""
    own = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "beyond": 5_000}, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>")


def test_half_of_a_surrogate_pair(fresh, tokenizer):
    model = fresh()
    with pytest.raises(DocumentError, match=NO_CHARACTER):
        longspan.read(model, tokenizer, HALF)
    document = longspan.read(model, tokenizer, "A text. " * 40)
    for call in (document.append, document.ask, Conversation(document).say):
        with pytest.raises(DocumentError, match="is half of a surrogate pair"):
            call(HALF)


def test_a_text_of_no_tokens(fresh, words, tmp_path):
    """An append of one wrote the files of the last segment anew, with the document still naming those before."""
    model, place = fresh(), tmp_path / "a.longspan"
    with pytest.raises(DocumentError, match="tokens must be"):
        longspan.read(model, words, " \n ")
    document = longspan.read(model, words, "a b " * 40, out=place)
    before = contents(place)
    for call in (document.append, lambda text: append_texts(place, model, words, [("x", text)])):
        with pytest.raises(DocumentError, match="the tokenizer may have dropped"):
            call("  ")
    for ids in ([], [[3, 4]], [-1], [5_000]):
        with pytest.raises(DocumentError, match="tokens must be|gives token (5,000|-1)"):
            document.append_tokens(torch.tensor(ids, dtype=torch.int64))
    document.save(place)
    assert verify(place).tokens == 80 and contents(place) == before


def test_tokens_that_the_model_does_not_have(fresh, words):
    document = longspan.read(fresh(), words, "a b " * 40)
    for call in (document.append, document.ask, Conversation(document).say):
        with pytest.raises(DocumentError, match="this tokenizer gives token 5,000, but the model has only 2,048"):
            call("a beyond")


def test_a_conversation_is_asked_texts(fresh, tokenizer):
    talk = Conversation(longspan.read(fresh(), tokenizer, "A text. " * 40))
    for question, said in ((None, "must be a string"), ("  ", "is empty")):
        with pytest.raises(DocumentError, match=f"the question {said}"):
            talk.say(question)


def test_a_source_that_is_no_string(fresh, tokenizer, tmp_path):
    """A manifest with None for a name could not be read back, and one with a path not be written."""
    model = fresh()
    with pytest.raises(DocumentError, match="source must be a string, not .*Path"):
        longspan.read(model, tokenizer, "A text. " * 40, source=tmp_path)
    document = longspan.read(model, tokenizer, "A text. " * 40)
    for source in (None, tmp_path):
        with pytest.raises(DocumentError, match="source must be a string, not"):
            document.append("More.", source=source)
        with pytest.raises(DocumentError, match="source must be a string, not"):
            document.append_tokens(torch.tensor([3]), source=source)
    with pytest.raises(DocumentError, match="a text must be a string, not b'More"):
        document.append(b"More.")
    document.save(tmp_path / "a.longspan")
    assert verify(tmp_path / "a.longspan").tokens == document.tokens
