"""Lengths that a method was set for: of a text, of what is appended, and of questions and answers."""

from __future__ import annotations

import pytest

import longspan
from longspan.documents.appending import append_texts
from longspan.errors import DocumentError

ASK = "Who is the narrator?"


@pytest.mark.parametrize("method", ["self-extend", "yarn", "pi", "string"])
def test_appending_past_the_length_that_a_method_was_set_for_is_refused(fresh, tokenizer, method):
    document = longspan.read(fresh(), tokenizer, "First words. " * 20, method=method)
    tokens, ids = document.tokens, document.contents.ids
    with pytest.raises(DocumentError, match="was set for .* when it was read; read all of the text"):
        document.append("More words. " * 4000)
    assert document.tokens == tokens and document.contents.ids is ids


@pytest.mark.parametrize("method", ["self-extend", "yarn", "pi"])
def test_asking_past_the_length_that_a_method_was_set_for_is_refused(fresh, tokenizer, method):
    document = longspan.read(fresh(), tokenizer, "First words. " * 60, method=method, length=600)
    assert document.ask(ASK, 4).tokens
    with pytest.raises(DocumentError, match=r"have up to [\d,]+ tokens, and .* was set for .*shorter answer"):
        document.ask(ASK, 4000)


@pytest.mark.parametrize("out", [False, True])
def test_reading_past_the_length_that_a_method_was_set_for_is_refused(fresh, tokenizer, tmp_path, out):
    text, folder = "First words. " * 60, tmp_path / "a.longspan" if out else None
    model = fresh()
    with pytest.raises(DocumentError, match=r"the text has [\d,]+ tokens, more than length=256, which counts"):
        longspan.read(model, tokenizer, text, method="auto", length=256, out=folder)
    with pytest.raises(DocumentError, match=r"the text has [\d,]+ tokens, and pi:scale=2 was set for 256; extend"):
        longspan.read(model, tokenizer, text, method="pi:scale=2", out=folder)
    assert not (tmp_path / "a.longspan").exists()
    longspan.extend(model, "pi", length=256)  # both before left the model as it was
    with pytest.raises(DocumentError, match="was set for 256; extend the model for a larger length"):
        longspan.read(model, tokenizer, text, out=folder)


def test_methods_that_have_to_know_how_far_to_reach(fresh, tokenizer, text):
    """They are told by the text's length, and some more for the questions."""
    document = longspan.read(fresh(), tokenizer, text, method="pi")
    assert document.attachment().attender.method.angles.scale >= (document.tokens + 1000) / 128
    told = longspan.read(fresh(), tokenizer, text, method="pi", length=128 * 100)
    assert told.attachment().attender.method.angles.scale == 100
    automatic = longspan.read(fresh(), tokenizer, text, method="auto")
    assert automatic.ask(ASK, 2).tokens


def test_auto_leaves_a_document_room(reader, tokenizer, tmp_path, capsys):
    """Inside the window it is a method that changes nothing there and has no limit; beyond it what it is anywhere."""
    for window, name in ((8192, "dca"), (1024, "dca"), (128, "esa")):
        out = tmp_path / f"{window}.longspan"
        model = reader(max_position_embeddings=window)
        document = longspan.read(model, tokenizer, "First words. " * 60, out=out)
        said = capsys.readouterr().err
        assert said.startswith(f"longspan auto: {name}: ") and name in repr(document)
        room = f"that is {document.tokens:,} tokens of the text and 4,096 for questions and answers"
        assert (room in said) == (window < 8192)
        document.append("More words. " * 4000)
        assert document.tokens > 8192 and document.ask(ASK, 4).tokens


def test_what_was_begun_goes_on_under_its_method(fresh, tokenizer, text, tmp_path):
    """``auto`` depends on the memory that is free, which differs from one day to the next."""

    class Enough(Exception):
        pass

    def stop(read, total):
        raise Enough

    out = tmp_path / "a.longspan"
    with pytest.raises(Enough):
        longspan.read(fresh(), tokenizer, text, method="dca", prefill_chunk=300, out=out, done=stop)
    for method in (None, "auto"):
        document = longspan.read(fresh(), tokenizer, text, method=method, prefill_chunk=300, out=out)
        assert "dca" in repr(document)
    with pytest.raises(DocumentError, match="another method"):
        longspan.read(fresh(), tokenizer, text, method="esa", prefill_chunk=300, out=out)


def test_a_document_under_full_stays_inside_the_window(reader, tokenizer, tmp_path):
    """The model's own attention does nothing beyond it, and nobody would be told."""
    model = reader(max_position_embeddings=8192)
    longspan.extend(model, "full", length=8192)
    document = longspan.read(model, tokenizer, "First words. " * 60, out=tmp_path / "a.longspan")
    document.append("Few more.")
    with pytest.raises(DocumentError, match="full was set for 8,192 when it was read; read all of the text into a new"):
        document.append("More words. " * 4000)
    with pytest.raises(DocumentError, match=r"tokens, and full was set for 8,192; ask for a shorter answer"):
        document.ask(ASK, 8192)
    with pytest.raises(DocumentError, match="full was set for 8,192"):
        append_texts(tmp_path / "a.longspan", model, tokenizer, [("b.txt", "More words. " * 4000)])
    assert document.ask(ASK, 4).tokens


def test_full_attention_beyond_the_window_is_read_where_it_is_asked_for(fresh, tokenizer, text):
    document = longspan.read(fresh(), tokenizer, text, method="full")
    assert document.tokens > 128
    document.append("More words.")
    assert document.ask(ASK, 2).tokens
