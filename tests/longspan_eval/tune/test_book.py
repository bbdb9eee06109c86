"""The texts of a book: their length, what is planted in them, and what they are made of."""

from __future__ import annotations

import pytest

from longspan.bundled import heldout_text, load_bundled
from longspan.errors import LongspanError
from longspan_eval.planted import ROOM
from longspan_eval.tasks import facts
from longspan_eval.tune.book import KIND, QUESTIONS, Book
from longspan_eval.tune.candidates import candidates

LENGTH = 1024


@pytest.fixture(scope="module")
def tokenizer():
    return load_bundled()[1]


@pytest.fixture(scope="module")
def text():
    return heldout_text()[:60_000]


@pytest.fixture(scope="module")
def book(text, tokenizer):
    return Book(text, "a book", tokenizer, LENGTH)


@pytest.mark.parametrize("number", [0, 1, 5, 63])
def test_a_text_has_its_length_and_every_fact_once(book, tokenizer, number):
    text = book.planted(KIND, number, LENGTH)
    assert len(text.input_ids) == LENGTH - ROOM and len(text.asked) == QUESTIONS
    said = tokenizer.decode(text.input_ids)
    places = [said.index(one.statement.strip()) for one in text.asked]
    assert places == sorted(places)
    scored = tokenizer.decode([text.input_ids[n] for n in text.scored])
    assert min(text.scored) >= len(text.input_ids) // 2
    assert not any(one.statement.strip() in scored for one in text.asked)


def test_first_texts_have_no_token_in_common_and_facts_differ(book, text, tokenizer):
    first, second = (book.planted(KIND, number, LENGTH) for number in (0, 1))
    own = tokenizer.decode([second.input_ids[n] for n in second.scored])
    assert own[-100:] in " ".join(text.split()) and own[-100:] not in tokenizer.decode(first.input_ids)
    assert {one.statement for one in first.asked}.isdisjoint(one.statement for one in second.asked)


def test_the_seed_and_the_text_are_what_it_is_made_of(book, text, tokenizer):
    other = Book(text, "a book", tokenizer, LENGTH, seed=1)
    assert other.digest != book.digest != Book(text + " More.", "a book", tokenizer, LENGTH).digest
    assert other.planted(KIND, 0, LENGTH).asked != book.planted(KIND, 0, LENGTH).asked
    assert Book(text, "else", tokenizer, LENGTH).planted(KIND, 3, LENGTH).input_ids == (
        book.planted(KIND, 3, LENGTH).input_ids
    )


def test_a_book_that_is_too_short_says_how_many_tokens_it_has_and_needs(book, text, tokenizer):
    Book(text, "a book", tokenizer, book.tokens).planted(KIND, 1, book.tokens)
    with pytest.raises(LongspanError, match=f"has {book.tokens:,} tokens .* {book.tokens + 1:,} are needed"):
        Book(text, "a book", tokenizer, book.tokens + 1)
    with pytest.raises(LongspanError, match="at least 512"):
        Book(text, "a book", tokenizer, 511)


def test_a_text_about_the_people_of_facts_is_refused(text, tokenizer):
    book = Book(text + ", ".join(facts.PEOPLE[:30]), "a book", tokenizer, LENGTH)
    with pytest.raises(LongspanError, match="names .* of the .* people"):
        book.planted(KIND, 0, LENGTH)


@pytest.mark.parametrize("window", [64, 128, 512, 1000, 8192, 32_768])
def test_candidates_can_run_and_keep_equal_budgets(window):
    rows = candidates(window)
    assert len({row.label for row in rows}) == len(rows) > 10
    for row in rows:
        assert "error" not in row.parameters(window, 4 * window), row.label
    longheads = [row.method for row in rows if row.name == "longheads" and row.method.chunk_length]
    kept = [one.num_chunks * one.chunk_length for one in longheads]
    assert all(any(size - 32 < each <= size for size in (window, window // 2, window // 4)) for each in kept)
    assert all(one.local_chunks * one.chunk_length <= max(window // 8, one.chunk_length) for one in longheads)
    assert {row.window for row in rows} <= {None, window // 4, window // 2}
