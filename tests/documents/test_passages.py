"""Passages lie in the text that they begin in."""

from __future__ import annotations

from collections import Counter

import torch

from longspan.attend import Choice
from longspan.documents.contents import Contents
from longspan.documents.encoded import InMemory
from longspan.documents.manifest import Source
from longspan.documents.passages import looked_at, ranked

TEXT = "first one\n\n\n\nlast one"  # three texts with two line breaks between, the second one empty
SOURCES = Source("a", 0, 9), Source("b", 11, 11), Source("c", 13, 21)


def only(start, stop, text=TEXT, sources=SOURCES):
    """The one passage of a range, of a document with a token for each character."""
    places = torch.stack((torch.arange(len(TEXT)), torch.arange(len(TEXT)) + 1), -1)
    contents = Contents(InMemory(torch.arange(len(TEXT)), places, text), sources)
    found = ranked(Counter({(start, stop): 1}), 1, contents)
    return [(one.source, one.first, one.last, one.text) for one in found]


def test_a_passage_over_two_texts_ends_with_the_one_that_it_begins_in():
    assert only(6, 21) == [("a", 6, 9, "one")]
    assert only(6, 21, text=None) == [("a", 6, 9, None)]


def test_a_passage_that_begins_between_two_texts_is_of_the_next_that_has_any():
    assert only(9, 17) == only(12, 17) == [("c", 0, 4, "last")]
    assert only(9, 13) == []


def test_a_text_without_sources_is_not_clipped():
    assert only(6, 21, sources=()) == [("", 6, 21, TEXT[6:])]


def test_ranges_are_counted_from_the_first_token_of_the_units():
    """The blocks of InfLLM begin after its initial tokens."""
    about = {"call": 0, "layer": 0, "row": 0, "first": 90, "query": 90, "padding": 0}
    units = torch.tensor([[0, 2], [2, 3]])
    choices = [Choice(units=units, size=4, origin=3, scores=None, scored_from=0, kept=(), **about)]
    assert looked_at(choices, 1) == ({(3, 7): 1, (11, 15): 2, (15, 19): 1}, 2)
    assert looked_at(choices, 8) == ({(0, 8): 1, (8, 16): 2}, 2)
