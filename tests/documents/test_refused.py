"""What reading, asking and saving refuse, in words that name it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

import longspan
from longspan.errors import DocumentError
from support.hf_models import lfm2

ASK = "Who is the narrator?"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 2}, "num_beams=2 .*writes one answer, token by token; leave it out"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences=2 "),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 "),
        ({"generation_config": GenerationConfig(num_beams=3)}, "num_beams=3 "),
        ({"streamer": None, "attention_mask": None}, "attention_mask, streamer: set by ask itself; leave them out"),
        ({"input_ids": torch.ones(1, 3)}, "input_ids: set by ask itself"),
    ],
)
def test_options_of_generate_that_an_answer_cannot_have(document, options, words):
    with pytest.raises(DocumentError, match=words):
        document.ask(ASK, 4, **options)


def test_an_assistant_is_refused(document, fresh):
    with pytest.raises(DocumentError, match="(?s)assistant_model=.* is for several"):
        document.ask(ASK, 4, assistant_model=fresh())


@pytest.mark.parametrize("text", [None, 3, ["ab", "cd"], [("name", 3)], ["ab"], [("a", "b", "c")]])
def test_a_text_that_is_none_is_refused(fresh, tokenizer, text):
    with pytest.raises(DocumentError, match="text must be a string or a list of"):
        longspan.read(fresh(), tokenizer, text)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_in_place_of_a_text_is_refused(fresh, tokenizer, tmp_path, kind):
    (tmp_path / "book.txt").write_text("Words.")
    with pytest.raises(DocumentError, match=r"read takes a text, and '.*book.txt' is a file; pass Path\(.*read_text"):
        longspan.read(fresh(), tokenizer, kind(tmp_path / "book.txt"))
    assert longspan.read(fresh(), tokenizer, "no-book.txt").tokens


def test_layers_that_keep_a_state_are_refused_before_anything_is_read(tokenizer, text, tmp_path):
    model = lfm2()
    model.resize_token_embeddings(len(tokenizer))
    with pytest.raises(DocumentError, match="layer 0 keeps a .*, which a document cannot hold; use"):
        longspan.read(model, tokenizer, text, method="dca", out=tmp_path / "book.longspan")
    assert not any(tmp_path.iterdir())
    assert longspan.inspect(model).attached, "it is extended no more"


def test_a_question_that_is_none_is_refused(document):
    with pytest.raises(DocumentError, match="the question must be a string"):
        document.ask(None)


def test_the_model_has_to_run_what_it_ran(document):
    longspan.extend(document.model, "dca")
    with pytest.raises(DocumentError, match="read under longheads:.* now runs dca:"):
        document.ask(ASK, 2)
    longspan.restore(document.model)
    with pytest.raises(DocumentError, match="not extended"):
        document.ask(ASK, 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda d, p: d.ask("  "), "question is empty"),
        (lambda d, p: d.ask("x", 0), "max_new_tokens"),
        (lambda d, p: d.append(""), "no text to append"),
        (lambda d, p: longspan.read(d.model, d.tokenizer, ""), "text is empty"),
        (lambda d, p: longspan.read(d.model, d.tokenizer, "x", layout="{document}"), "a layout must be"),
        (lambda d, p: longspan.read(d.model, d.tokenizer, "x", layout="chat"), "no chat template"),
        (lambda d, p: longspan.read(d.model, d.tokenizer, "x", prefill_chunk=0), "prefill_chunk"),
        (lambda d, p: d.save(p / "file"), "is a file"),
        (lambda d, p: d.save(p), "holds file, which does not belong to a document"),
        (lambda d, p: d.go_on(torch.tensor([1, 2]), 3), "must begin with those of the document"),
        (lambda d, p: longspan.Document.open(p / "none", d.model, d.tokenizer), "this document does not exist"),
        (lambda d, p: longspan.Document.open(p, d.model, d.tokenizer), "this folder is not a document"),
        (lambda d, p: longspan.Document.open(p / "file", d.model, d.tokenizer), "is a file"),
    ],
)
def test_refusals(document, tmp_path, call, said):
    (tmp_path / "file").write_text("x")
    with pytest.raises(longspan.LongspanError, match=said):
        call(document, tmp_path)


@pytest.mark.parametrize("length", [0, -1, 3.5])
def test_a_length_that_is_none_is_refused(fresh, tokenizer, length):
    with pytest.raises(longspan.LongspanError, match="length must be"):
        longspan.read(fresh(), tokenizer, "Words.", method="pi", length=length)


def test_a_tokenizer_of_another_model_is_refused(reader, tokenizer, text, tmp_path):
    with pytest.raises(DocumentError, match="but the model has only 300 tokens; use the tokenizer of the model"):
        longspan.read(reader(vocab_size=300), tokenizer, text, out=tmp_path / "one")
    assert not (tmp_path / "one").exists()
