"""Prompts that hide a passkey in prose: exact lengths, the same ending at every length, and nothing scored twice."""

from __future__ import annotations

import pytest

from longspan.bundled import heldout_text
from longspan.evaluation.haystack import ANSWER_ROOM, Haystack


@pytest.fixture(scope="module")
def haystack(tokenizer):
    return Haystack(tokenizer, heldout_text())


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("length", [512, 2048])
def test_length_is_exact_and_the_passkey_whole(tokenizer, haystack, length, depth):
    prompt = haystack.prompt(length=length, depth=depth, seed=3)
    text = tokenizer.decode(prompt.input_ids)
    assert len(prompt.input_ids) == length - ANSWER_ROOM
    assert f"\nThe pass key is {prompt.answer}. Remember it. {prompt.answer} is the pass key.\n" in text
    assert text.endswith("\nWhat is the pass key? The pass key is")
    where = text.index(prompt.answer) / len(text)
    assert abs(where - depth) < 0.25


def test_prompts_of_one_seed_end_alike_at_every_length(haystack):
    short, long = (haystack.prompt(length=length, depth=0.0, seed=5) for length in (512, 4096))
    assert short.answer == long.answer
    assert [short.input_ids[n] for n in short.scored] == [long.input_ids[n] for n in long.scored]
    assert short.input_ids[-250:] == long.input_ids[-250:]


@pytest.mark.parametrize("depth", [0.0, 0.7, 0.95, 1.0])
def test_only_prose_is_scored(tokenizer, haystack, depth):
    prompt = haystack.prompt(length=512, depth=depth, seed=1, targets=200)
    assert len(prompt.scored) in (199, 200) and len(set(prompt.scored)) == len(prompt.scored)
    scored = tokenizer.decode([prompt.input_ids[n] for n in prompt.scored])
    assert prompt.answer not in scored and "pass key" not in scored
    # Without the needle the scored tokens are the same prose.
    whole = haystack.prompt(length=2048, depth=0.0, seed=1, targets=200)
    assert scored in tokenizer.decode(whole.input_ids) or len(prompt.scored) == 199


def test_seeds_differ_and_repeat(haystack):
    one, again, two = (haystack.prompt(length=600, depth=0.5, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.answer != two.answer and one.input_ids != two.input_ids


def test_prose_shorter_than_the_prompt_is_read_round(tokenizer):
    prompt = Haystack(tokenizer, "Snow fell on the hills.\nNobody came.\n").prompt(length=800, depth=0.5, seed=0)
    assert tokenizer.decode(prompt.input_ids).count("Nobody came.") > 5


def test_refuses_what_cannot_be(tokenizer, haystack):
    with pytest.raises(ValueError, match="too few"):
        haystack.prompt(length=300, depth=0.5, seed=0)
    least = haystack.prompt(length=512, depth=0.5, seed=0, targets=300)
    assert len(least.scored) >= 299
    with pytest.raises(ValueError, match="depth"):
        haystack.prompt(length=512, depth=-0.1, seed=0)
    with pytest.raises(ValueError, match="empty"):
        Haystack(tokenizer, "")
