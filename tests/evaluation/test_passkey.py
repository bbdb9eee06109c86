"""The passkey task: exact lengths, whole needles, reproducible prompts, and scoring."""

from __future__ import annotations

import pytest

from longspan.bundled import FOLDER
from longspan.evaluation.passkey import build, score


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(FOLDER)


@pytest.mark.parametrize("filler", ["noise", "prose"])
@pytest.mark.parametrize("length", [150, 504, 512, 2048, 4099])
@pytest.mark.parametrize("depth", [None, 0.0, 0.37, 1.0])
def test_length_is_exact_and_needle_whole(tokenizer, filler, length, depth):
    example = build(tokenizer, length=length, seed=length, depth=depth, filler=filler)
    assert len(example.input_ids) == length
    text = tokenizer.decode(example.input_ids)
    assert f"\nThe pass key is {example.answer}. Remember it. {example.answer} is the pass key.\n" in text
    assert text.endswith("\nWhat is the pass key? The pass key is")
    assert text.startswith("<s>There is an important info hidden")
    assert len(example.answer) == 5 and example.answer.isdigit()
    if depth is not None and length >= 2048:
        assert abs(example.depth - depth) < 0.05


def test_the_depth_orders_the_needle(tokenizer):
    places = []
    for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
        example = build(tokenizer, length=1024, seed=3, depth=depth)
        places.append(tokenizer.decode(example.input_ids).index(example.answer))
    assert places == sorted(places) and len(set(places)) == 5


def test_the_seed_decides_everything(tokenizer):
    first, again, other = (build(tokenizer, length=400, seed=seed, filler="prose") for seed in (7, 7, 8))
    assert first == again
    assert first.input_ids != other.input_ids and first.answer != other.answer


def test_a_text_shorter_than_the_prompt_is_read_round(tokenizer):
    text = "Snow fell on the hills.\nNobody came.\n"
    example = build(tokenizer, length=900, seed=1, filler="prose", text=text)
    assert len(example.input_ids) == 900
    assert tokenizer.decode(example.input_ids).count("Nobody came.") > 5


def test_refuses_what_cannot_be_built(tokenizer):
    with pytest.raises(ValueError, match="too few"):
        build(tokenizer, length=20, seed=0)
    with pytest.raises(ValueError, match="depth"):
        build(tokenizer, length=300, seed=0, depth=1.5)
    with pytest.raises(ValueError, match="filler"):
        build(tokenizer, length=300, seed=0, filler="music")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        (" 48213.", 1.0),
        ("48213", 1.0),
        ("it is 48213 and 11111", 1.0),
        ("4821", 0.0),
        ("482133", 0.0),
        ("11111 48213", 0.0),
        ("", 0.0),
        ("none", 0.0),
    ],
)
def test_score(prediction, expected):
    assert score(prediction, "48213") == expected
