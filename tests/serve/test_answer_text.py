"""What ends an answer, what of its text is shown, and that the texts of its tokens are together that text."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER
from longspan.serve.answer_text import AnswerText
from longspan.serve.sampling import Token
from support.token_texts import of_bytes

TOKENIZER, BYTES, END = PreTrainedTokenizerFast.from_pretrained(FOLDER), of_bytes(), 1


def told(tokens, tokenizer=TOKENIZER, most=99, **options):
    """Its text, what ended it, and how many of the tokens it took."""
    answer, parts = AnswerText(tokenizer, ends=frozenset([END]), most=most, **options), []
    taken = 0
    while answer.finish is None and taken < len(tokens):
        parts.append(answer.append(Token(tokens[taken])))
        taken += 1
    parts = [one for one in parts if one is not None]
    text = "".join(one.text for one in parts)
    assert (
        text == "".join(token.text for one in parts for token in one.tokens) == "".join(answer.of_each(tokens[:taken]))
    )
    return text, answer.finish, taken


@pytest.mark.parametrize("streamed", [True, False])
def test_a_token_a_text_or_its_length_ends_it(streamed):
    ids = TOKENIZER("The road was long. It went on.", add_special_tokens=False)["input_ids"]
    whole = TOKENIZER.decode(ids)
    assert told([*ids, END, *ids], streamed=streamed) == (whole, "stop", len(ids) + 1)
    assert told(ids, most=len(ids), streamed=streamed) == (whole, "length", len(ids))
    assert told([*ids, END], most=len(ids) + 1, streamed=streamed) == (whole, "stop", len(ids) + 1)
    assert told(ids, stop=["long", "on"], streamed=streamed)[:2] == (whole[: whole.index("long")], "stop")
    assert told(ids, stop=["on.!"], most=len(ids), streamed=streamed) == (whole, "length", len(ids))


@pytest.mark.parametrize("count", range(1, 7))
def test_bytes_at_its_end_that_are_no_character(count):
    """Of four or more the first are shown before it ends, and the rest with the last token."""
    damaged = BYTES.convert_tokens_to_ids(["<0xF0>"]) * count
    text, finish, _ = told([*damaged, END], BYTES)
    assert set(text) == {"\ufffd"} and finish == "stop"
