"""Text comes in whole characters, and nothing of a stop string ever does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan.serve.detokenize import Text

TOKENIZER = PreTrainedTokenizerFast.from_pretrained(FOLDER)


def parts(text, stop=()):
    """The text of each token, as it comes, and of the end."""
    told, ids = Text(TOKENIZER, stop), TOKENIZER(text, add_special_tokens=False)["input_ids"]
    found = []
    for id in ids:
        found.append(told.add(id))
        if told.stopped:
            break
    found.append(told.end())
    assert told.shown == len("".join(found)) and (told.length == told.shown or told.stopped)
    return found, told.stopped


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_all_of_it_comes(text):
    whole = TOKENIZER.decode(TOKENIZER(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    assert "".join(parts(text)[0]) == whole


@pytest.mark.parametrize("text", ["naïve café 🙂🙂 done", "日本語のテキスト", "a" * 50])
def test_characters_come_whole(text):
    found, _ = parts(text)
    assert "".join(found) == text and not any("\ufffd" in part for part in found)


@settings(max_examples=60, deadline=None)
@given(st.text("ab. ", min_size=1, max_size=30), st.lists(st.text("ab. ", min_size=1, max_size=5), max_size=4))
def test_it_ends_where_the_first_stop_begins(text, stop):
    found, stopped = parts(text, stop)
    at = min((text.find(s) for s in stop if s in text), default=len(text))
    said = "".join(found)
    assert stopped == any(s in text for s in stop)
    # A stop string that ends first stops first, though another one may have begun before it.
    assert text.startswith(said) and not any(s in said for s in stop)
    assert said == text if not stopped else len(said) >= at


def test_a_stop_string_across_tokens_is_never_told():
    found, stopped = parts("one two END three", ["END"])
    assert stopped and "".join(found) == "one two "
    found, stopped = parts("one two EN", ["END"])
    assert not stopped and found[-1].endswith("EN"), "what only began like one comes at the end"
