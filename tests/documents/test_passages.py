"""Passages are the sentences that an answer attended to, under every method, inside the window and beyond."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.bundled import heldout_text
from longspan.documents import units as units_of_documents
from longspan.documents.contents import NOWHERE, Contents
from longspan.documents.encoded import InMemory
from longspan.documents.manifest import Source
from longspan.documents.passages import Attended, weigh
from longspan.documents.units import units_of
from longspan.errors import DocumentError
from longspan.methods import METHODS

NEEDLE = "The pass key is 71428. Remember it. 71428 is the pass key."
QUESTION = "What is the pass key? The pass key is"
TEXT = "One is. Two is.\n\n\n\nThree is here. Four."  # three texts with two line breaks between, the second one empty
SOURCES = Source("a", 0, 15), Source("b", 17, 17), Source("c", 19, 39)


def contents(text: str | None = TEXT, sources=SOURCES) -> Contents:
    """A token for each character, after one that is not of the text."""
    own = torch.stack((torch.arange(len(TEXT)), torch.arange(len(TEXT)) + 1), -1)
    places = torch.cat((torch.tensor([NOWHERE]), own))
    return Contents(InMemory(torch.arange(len(places)), places, text), sources)


def attended(weights: list[float], neutral: list[float], text: str | None = TEXT) -> Attended:
    held = contents(text)
    return Attended(held, units_of(held), torch.tensor([weights]), torch.tensor(neutral), 1)


def test_a_unit_is_a_sentence_of_one_text():
    units = units_of(contents())
    assert [TEXT[a:b] for a, b in units.places.tolist()] == ["One is.", "Two is.", "Three is here.", "Four."]
    assert units.sources.tolist() == [0, 0, 2, 2]
    of = [[TEXT[int(n) - 1] for n in (units.of == unit).nonzero()[:, 0]] for unit in range(4)]
    assert ["".join(one).strip() for one in of] == ["One is.", "Two is.", "Three is here.", "Four."]
    assert units.of[0] == -1


def test_many_units_become_fewer_of_one_text_each(monkeypatch):
    whole = units_of(contents())
    monkeypatch.setattr(units_of_documents, "MOST", 2)
    units = units_of(contents())
    assert [TEXT[a:b] for a, b in units.places.tolist()] == ["One is. Two is.", "Three is here. Four."]
    assert torch.equal(units.of, torch.where(whole.of >= 0, whole.of // 2, -1))


def test_a_text_that_was_not_kept_has_runs_of_tokens(monkeypatch):
    monkeypatch.setattr(units_of_documents, "_BLIND", 10)
    units = units_of(contents(None))
    assert units.places.tolist() == [[0, 10], [10, 15], [19, 29], [29, 39]]
    assert (units.of[:, None] == torch.arange(4)).sum(dim=0).tolist() == [10, 5, 10, 10]
    (first, *_) = attended([0, 0, 0.5, 0], [0.1] * 4, None).passages()
    assert (first.source, first.first, first.last, first.text) == ("c", 0, 10, None)


def test_passages_are_compared_with_a_neutral_question():
    (first,) = attended([0.5, 0.3, 0.1, 0.1], [0.5, 0.05, 0.2, 0.25]).passages()
    assert first.text == "Two is." and (first.source, first.first, first.last) == ("a", 8, 15)
    assert first.share == pytest.approx(0.3) and first.lift == pytest.approx((0.3 + 0.25) / (0.05 + 0.25))


def test_sentences_that_follow_one_another_are_one_passage_of_one_text():
    found = attended([0.1, 0.2, 0.2, 0.3], [0.01] * 4).passages()
    assert [(one.source, one.text) for one in found] == [("c", "Three is here. Four."), ("a", "One is. Two is.")]
    assert [one.share for one in found] == pytest.approx([0.5, 0.3])


def test_the_heaviest_are_there_whatever_stands_out():
    found = attended([0.1, 0.2, 0.0, 0.3], [0.2, 0.4, 0.1, 0.6])
    assert found.passages() == () or min(one.lift for one in found.passages()) > 1
    assert [one.share for one in found.heaviest()] == pytest.approx([0.3, 0.3])


def test_no_passage_if_nothing_stands_out():
    assert attended([0.1] * 4, [0.1] * 4).passages() == ()


@pytest.fixture(scope="module")
def bundled():
    return longspan.load_bundled()


def asked(bundled, method: str, tokens: int, **options):
    """An answer with its passages about a text of so many characters with a needle in its middle."""
    model, tokenizer = bundled
    text = heldout_text()
    middle = text.index("\n", tokens // 2)
    longspan.restore(model)
    whole = f"{text[:middle]}\n{NEEDLE}{text[middle:tokens]}"
    return longspan.read(model, tokenizer, whole, method=method, length=4096, **options).ask(QUESTION, 6, passages=True)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"pi"}))  # under which this model answers wrong
def test_inside_the_window_every_method_shows_the_sentence_with_the_answer(bundled, name):
    answer = asked(bundled, name, 1200)
    assert "71428" in answer.text and "71428" in answer.passages[0].text


@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds", "esa", "rerope", "self-extend"])
def test_beyond_the_window_the_sentence_with_the_answer_comes_first(bundled, name):
    answer = asked(bundled, name, 4000)
    assert "71428" in answer.text and "71428" in answer.passages[0].text


@pytest.mark.parametrize("name", ["dca", "esa", "infllm", "dynamic-ntk"])
def test_weights_are_those_of_tokens_written_one_by_one(bundled, name):
    """Also of methods whose tokens choose together, or turn by the length."""
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, heldout_text()[:5000], method=name)
    ids = document.prompt(QUESTION)
    answer = document.go_on(ids, 5).tokens
    weights, cache = document.attended(ids, answer).weights, document.cache()
    weigh(model, document.attachment(), cache, ids[document.tokens :], ids[:0], units_of(document.contents))
    own = [weights[:1]]
    for token in answer[:-1]:
        alone = torch.tensor([token]), torch.tensor([], dtype=torch.int64)
        own.append(weigh(model, document.attachment(), cache, *alone, units_of(document.contents)))
    torch.testing.assert_close(weights, torch.cat(own), rtol=1e-4, atol=1e-6)


def test_an_answers_own_cache_gives_the_same_passages(bundled):
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, heldout_text()[:5000], method="longheads:score=bounds")
    ids, cache = document.prompt(QUESTION), document.cache()
    answer = document.go_on(ids, 6, cache=cache)
    cache.crop(cache.croppable(len(ids) - 1))
    own, other = document.attended(ids, answer.tokens, cache=cache), document.attended(ids, answer.tokens)
    torch.testing.assert_close(own.weights, other.weights, rtol=1e-4, atol=1e-6)


def test_a_stop_string_is_no_part_of_what_is_shown(bundled):
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, heldout_text()[:1200] + NEEDLE, method="dca")
    ids = document.prompt(QUESTION)
    answer = document.go_on(ids, 6, stop_strings=["142"])
    assert answer.text.strip() == "7" and len(answer.tokens) > 3
    seen = document.attended(ids, answer.tokens, answer.text)
    assert seen.shown == 2 and document.attended(ids, answer.tokens).shown == len(answer.tokens)


def test_a_text_without_sentences_has_no_passages(bundled):
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, "  \n \n ", method="dca", layout="plain")
    assert document.ask("Who?", 3, passages=True).passages == ()
    with pytest.raises(DocumentError, match="without tokens"):
        document.attended(document.prompt("Who?"), [])


@pytest.mark.parametrize("name", ["dca", "longheads:score=bounds", "esa"])
def test_passages_of_keys_and_values_in_int8(bundled, name):
    answer = asked(bundled, name, 4000, kv="int8")
    assert "71428" in answer.text and "71428" in answer.passages[0].text


def test_the_lists_of_two_questions_differ(bundled):
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, heldout_text()[:6000], method="longheads:score=bounds")
    lifts = []
    for question in ("What does the function return?", "Who wrote the first line?"):
        ids = document.prompt(question)
        lifts.append(document.attended(ids, document.go_on(ids, 8).tokens).lifts())
    assert float(torch.corrcoef(torch.stack(lifts))[0, 1]) < 0.9


def test_passages_change_nothing(bundled):
    model, tokenizer = bundled
    longspan.restore(model)
    document = longspan.read(model, tokenizer, heldout_text()[:4000], method="esa")
    first = document.ask(QUESTION, 6)
    assert document.ask(QUESTION, 6, passages=True).tokens == first.tokens == document.ask(QUESTION, 6).tokens
