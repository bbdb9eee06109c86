"""Text comes in whole characters, that of every token alone; and nothing of a stop string ever does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan.text.detokenize import IncrementalDetokenizer
from longspan.text.ends import StopStrings
from support.token_texts import of_bytes, without_first_space

TOKENIZER = PreTrainedTokenizerFast.from_pretrained(FOLDER)
STRIPPING = without_first_space(TOKENIZER)
BYTES = of_bytes()


def parts(text, stop=(), tokenizer=TOKENIZER):
    """The text of each token, as it comes, and of the end."""
    told, stops = IncrementalDetokenizer(tokenizer), StopStrings(stop)
    found = []
    encoding = BYTES if tokenizer is BYTES else TOKENIZER
    for id in encoding(text, add_special_tokens=False)["input_ids"]:
        found.append(stops.cut(told.add(id)))
        if stops.stopped:
            break
    else:
        found.append(stops.cut(told.end()))
    if not stops.stopped:
        found.append(stops.end())
    assert stops.shown == len("".join(found))
    return found, stops.stopped


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from([TOKENIZER, STRIPPING]))
def test_all_of_it_comes(text, tokenizer):
    whole = tokenizer.decode(TOKENIZER(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True)
    assert "".join(parts(text, tokenizer=tokenizer)[0]) == whole


def test_a_token_that_may_come_next_has_the_text_that_it_would_have():
    ids = TOKENIZER(" one two three four five six é", add_special_tokens=False)["input_ids"]
    told = IncrementalDetokenizer(STRIPPING)
    for id in ids:
        before = told.alternatives([*ids, STRIPPING.eos_token_id])
        assert told.alternatives([]) == [] and before[-1] == STRIPPING.eos_token
        assert told.add(id) == before[ids.index(id)]
    assert STRIPPING.decode(ids[1:2]) != told.alternatives(ids[1:2])[0], "this tokenizer does not drop spaces"


@pytest.mark.parametrize("tokenizer", [TOKENIZER, BYTES])
@pytest.mark.parametrize("text", ["naïve café 🙂🙂 done", "日本語のテキスト", "a日é🙂語のテキスト b", "a" * 50])
def test_characters_come_whole(text, tokenizer):
    found, _ = parts(text, tokenizer=tokenizer)
    assert "".join(found) == text and not any("\ufffd" in part for part in found)


def test_a_token_takes_as_long_after_many_others(monkeypatch):
    """Few tokens are decoded again for each."""
    told, lengths, decode = IncrementalDetokenizer(TOKENIZER), [], TOKENIZER.decode
    monkeypatch.setattr(TOKENIZER, "decode", lambda ids, **more: lengths.append(len(ids)) or decode(ids, **more))
    for id in TOKENIZER("one two three. " * 20, add_special_tokens=False)["input_ids"]:
        told.add(id)
    assert len(lengths) > 60 and max(lengths) < 16


@pytest.mark.parametrize("last", ["", "a"])
def test_half_a_character_spoils_none_before_it(last):
    ids = BYTES("日本", add_special_tokens=False)["input_ids"][:-1]
    told = IncrementalDetokenizer(BYTES)
    found = [told.add(id) for id in [*ids, *BYTES(last)["input_ids"]]]
    assert "".join([*found, told.end()]) == f"日\ufffd\ufffd{last}"


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
