"""One pass over a prompt: its losses are the model's, its answer is greedy, extended or not."""

from __future__ import annotations

import math

import pytest
import torch

import longspan
from longspan.errors import LongspanError
from longspan.text.ends import end_tokens
from longspan_eval.generate import decode, prefill, read
from longspan_eval.perplexity import perplexity, token_losses
from longspan_eval.tasks.passkey import number_complete


@pytest.fixture
def ids():
    return torch.randint(3, 1000, (120,), generator=torch.Generator().manual_seed(1)).tolist()


def test_losses_equal_the_models_own(model, tokenizer, ids):
    reading = read(model, tokenizer, ids, scored=range(1, 120), max_new_tokens=1)
    row = torch.tensor([ids])
    with torch.no_grad():
        own = model(row, labels=row).loss
    assert math.fsum(reading.losses) / 119 == pytest.approx(float(own), rel=1e-5)
    assert perplexity(reading.losses) == pytest.approx(math.exp(float(own)), rel=1e-4)


def test_losses_of_a_few_late_tokens_need_only_late_logits(model, tokenizer, ids):
    every = read(model, tokenizer, ids, scored=range(1, 120), max_new_tokens=1).losses
    some = read(model, tokenizer, ids, scored=(80, 90, 119), max_new_tokens=1).losses
    assert some == pytest.approx([every[79], every[89], every[118]], rel=1e-4)


def test_a_token_before_the_first_logits_is_refused():
    with pytest.raises(ValueError, match="before the first logits"):
        token_losses(torch.zeros(3, 10), torch.zeros(8, dtype=torch.long), [5])


def test_perplexity_that_overflows_is_infinite():
    assert perplexity([1000.0, 900.0]) == math.inf


def test_output_that_is_not_finite_is_no_answer(model, tokenizer, ids):
    """Its likeliest token would be the first NaN, scored as a wrong answer; and no mean is taken of its losses."""
    with torch.no_grad():
        model.model.norm.weight[3] = math.nan
    with pytest.raises(LongspanError, match="NaN or infinite"):
        read(model, tokenizer, ids, max_new_tokens=1)
    with pytest.raises(LongspanError, match="NaN or infinite"):
        read(model, tokenizer, ids, scored=(90, 119), max_new_tokens=0)


@pytest.mark.parametrize("method", [None, "full", "dca"])
def test_answers_are_what_generate_gives(model, tokenizer, ids, method):
    if method:
        longspan.extend(model, method)
    reading = read(model, tokenizer, ids, max_new_tokens=9)
    row = torch.tensor([ids])
    out = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=9, do_sample=False)
    assert reading.text == tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)


def test_stops_at_an_end_token_and_when_the_text_will_do(model, tokenizer, ids):
    texts: list[str] = []
    read(model, tokenizer, ids, max_new_tokens=9, until=lambda text: texts.append(text))
    assert len(texts) == 9
    assert read(model, tokenizer, ids, max_new_tokens=9, until=lambda text: text == texts[2]).text == texts[2]
    with torch.no_grad():
        model.generation_config.eos_token_id = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    assert read(model, tokenizer, ids, max_new_tokens=9).text == ""


def test_past_an_end_token_there_are_as_many_tokens_as_asked_for(model, ids):
    def tokens(**more):
        with torch.inference_mode():
            return list(decode(model, *prefill(model, torch.tensor([ids]), 1), 9, **more))

    every = tokens()
    model.generation_config.eos_token_id = every[2]
    cut = every.index(every[2])
    assert end_tokens(model) == {every[2]} and len(every) == 9
    assert tokens() == every[:cut] and tokens(past_end=True) == every


@pytest.mark.parametrize(("text", "done"), [(" 48213", False), (" 48213.", True), ("", False), ("none", False)])
def test_number_complete(text, done):
    assert number_complete(text) is done
