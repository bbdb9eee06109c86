"""Prompts of instruction, text and question: exact lengths, and only the text is ever cut."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER, heldout_text
from longspan.text.encode import encode
from longspan_eval.prompt import compose, cut_middle, fit

BEFORE, AFTER, LEAD = "Read this.\n\n", "\n\nQuestion: who?\n", "Answer:"
TEXT = heldout_text()[:6000]
TEMPLATE = "{{ bos_token }}<user>{{ messages[0]['content'] }}</user>{% if add_generation_prompt %}<bot>{% endif %}"


@pytest.fixture(scope="module")
def chatty():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def ask(tokenizer, length, cut="middle", chat=True, text=TEXT, new_tokens=10):
    return fit(tokenizer, BEFORE, text, AFTER, length=length, new_tokens=new_tokens, cut=cut, chat=chat, lead=LEAD)


def test_what_fits_is_left_whole(tokenizer, chatty):
    assert tokenizer.decode(ask(tokenizer, 500, text="A text.")) == f"<s>{BEFORE}A text.{AFTER}{LEAD}"
    said = f"<s><user>{BEFORE}A text.{AFTER}</user><bot>{LEAD}"
    assert chatty.decode(ask(chatty, 500, text="A text.")) == said
    assert chatty.decode(ask(chatty, 500, text="A text.", chat=False)) == f"<s>{BEFORE}A text.{AFTER}{LEAD}"
    assert ask(chatty, 500, text="A text.") == compose(chatty, f"{BEFORE}A text.{AFTER}", chat=True, lead=LEAD)


def test_a_prompt_begins_as_the_tokenizer_begins_a_text(tokenizer):
    glm = copy.deepcopy(tokenizer)  # as GLM-4's: two tokens before a text, none of them named as its first
    first = [("<pad>", tokenizer.pad_token_id), ("<s>", tokenizer.bos_token_id)]
    glm.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<pad> <s> $A", special_tokens=first)
    glm.bos_token = None
    assert ask(glm, 500, text="A text.") == glm(f"{BEFORE}A text.{AFTER}{LEAD}")["input_ids"]
    ids = ask(glm, 200)
    assert len(ids) == 190 and ids[:3] == glm(BEFORE)["input_ids"][:3] == [*dict(first).values(), ids[2]]
    glm.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A <s>", special_tokens=first)
    assert ask(glm, 500, text="A text.") == encode(glm, f"{BEFORE}A text.{AFTER}{LEAD}")


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("cut", ["middle", "left", "right"])
@pytest.mark.parametrize("length", [200, 201, 333, 1000])
def test_what_is_too_long_fills_the_length_and_keeps_its_ends(chatty, cut, chat, length):
    ids = ask(chatty, length, cut, chat)
    assert length - 10 - (4 if chat else 0) <= len(ids) <= length - 10
    text = chatty.decode(ids)
    opening, closing = ("<s><user>", f"</user><bot>{LEAD}") if chat else ("<s>", LEAD)
    assert text.startswith(opening + BEFORE) and text.endswith(AFTER + closing)
    assert text.count("<s>") == 1
    kept = text[len(opening + BEFORE) : len(text) - len(AFTER + closing)]
    assert (kept[:20] == TEXT[:20]) == (cut != "left")
    assert (kept[-20:] == TEXT[-20:]) == (cut != "right")
    if cut == "middle":
        head = next(n for n in range(len(kept), 0, -1) if TEXT.startswith(kept[:n]))
        assert TEXT.endswith(kept[head + 1 :]) and abs(head - len(kept) / 2) < 0.2 * len(kept) + 40


def test_the_middle_goes_from_between_the_same_numbers_of_tokens(tokenizer):
    ids = ask(tokenizer, 211, chat=False)
    whole = encode(tokenizer, BEFORE + TEXT + AFTER + LEAD)
    assert ids[1:] == whole[:100] + whole[-100:]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("cut", ["middle", "left", "right"])
def test_too_short_a_length_is_refused_with_the_least_one(chatty, cut, chat):
    with pytest.raises(ValueError, match="12 tokens are too few.*10 tokens for the answer take ") as raised:
        ask(chatty, 12, cut, chat)
    least = int(str(raised.value).split()[-1])
    ids = ask(chatty, least, cut, chat)
    assert len(ids) <= least - 10 and AFTER.strip() in chatty.decode(ids) and BEFORE.strip() in chatty.decode(ids)
    with pytest.raises(ValueError, match=f"take {least}"):
        ask(chatty, least - 1, cut, chat)


@pytest.mark.parametrize("length", range(150, 158))
def test_a_character_that_is_cut_in_two_does_not_make_a_prompt_too_long(bytewise, length):
    chatty = copy.deepcopy(bytewise)
    chatty.chat_template = TEMPLATE.replace("{{ bos_token }}", "")
    ids = ask(chatty, length, text="\u20ac" * 400)  # three bytes each, as has the sign for a torn one
    assert length - 10 - 8 <= len(ids) <= length - 10
    text = chatty.decode(ids)
    assert text.startswith("<user>" + BEFORE) and text.endswith(f"{AFTER}</user><bot>{LEAD}")


def test_a_template_may_trim_what_is_said(chatty):
    trims = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    trims.chat_template = TEMPLATE.replace("['content']", "['content'] | trim")
    for length in (200, 4000):
        assert trims.decode(ask(trims, length)).endswith(f"\n\nQuestion: who?</user><bot>{LEAD}")


def test_a_template_that_says_it_twice_is_refused(tokenizer, chatty):
    twice = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    twice.chat_template = TEMPLATE + TEMPLATE
    with pytest.raises(ValueError, match="2 times instead of once"):
        ask(twice, 200)


def test_no_token_before_a_text_where_the_tokenizer_puts_none(chatty):
    bare = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    assert bare.decode(ask(bare, 500, text="A text.")).startswith("Read this.")
    assert len(ask(bare, 300)) == 290


@given(st.lists(st.integers(), max_size=40), st.integers(0, 45))
def test_cut_middle(ids, room):
    cut = cut_middle(ids, room)
    assert len(cut) == min(room, len(ids))
    head, tail = room // 2, room - room // 2
    assert cut == ids or (cut[:head] == ids[:head] and cut[head:] == (ids[-tail:] if tail else []))
