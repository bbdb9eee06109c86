"""The needle, several needles, and counted stars: whole, where they belong, asked for as they should be."""

from __future__ import annotations

import re

import pytest

from longspan_eval.tasks import TASKS
from longspan_eval.tasks.counting_stars import CountingStars
from longspan_eval.tasks.multi_needle import MultiNeedle

SENTENCE = "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n"


def build(tokenizer, name, length, seed, depth=None):
    example = TASKS[name].build(tokenizer, length=length, seed=seed, depth=depth)
    return example, tokenizer.decode(example.input_ids, skip_special_tokens=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [0.0, 0.27, 0.8, 1.0])
def test_the_needle_follows_a_whole_sentence_and_never_lies_deeper(any_tokenizer, seed, depth):
    example, text = build(any_tokenizer, "needle", 3000, seed, depth)
    start = "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n"
    end = (
        "\n\nWhat is the best thing to do in San Francisco? Don't give information outside the document or repeat your "
    )
    end += "findings\nThe best thing to do in San Francisco is"
    assert text.startswith(start) and text.endswith(end)
    before, after = text[len(start) : -len(end)].split(SENTENCE)
    assert example.placed <= depth and (example.placed == depth or depth in (0.27, 0.8))
    assert depth in (0.0, 1.0) or re.search(r"[.!?:)'\"\w]$", before)
    assert after == "" if depth == 1.0 else re.match(r"[ \n]", after) or depth == 0.0
    assert example.references == ("sandwich", "Dolores Park", "sunny day")


@pytest.mark.parametrize(("name", "count"), [("multi-needle", 5), ("multi-needle-3", 3)])
@pytest.mark.parametrize("seed", range(2))
def test_multi_needle(any_tokenizer, seed, name, count):
    example, text = build(any_tokenizer, name, 8000, seed)
    body, _, asked = text.partition("\n\nNow, the questions are: ")
    hidden = re.findall(r"\nHidden on (\w+) Island is the legendary (\w+ \w+)\.\n", body)
    assert len(hidden) == len(dict(hidden)) == len({item for _, item in hidden}) == count
    islands = re.findall(r"What legendary item is hidden on (\w+) Island\?", asked)
    assert tuple(dict(hidden)[island] for island in islands) == example.references
    form = " ".join(f"The legendary item hidden on the {island} Island is ____." for island in islands)
    assert asked.endswith(
        "? Before answering, please consider what in the document is most relevant to this question."
        f" Please answer in the format of '{form}'\nThe legendary item hidden on the {islands[0]} Island is"
    )
    places = [body.index(f"Hidden on {island} Island") / len(body) for island, _ in hidden]
    assert places == pytest.approx([n / (count - 1) for n in range(count)], abs=0.06)


def test_the_order_of_the_questions_is_drawn(tokenizer):
    orders = set()
    for seed in range(12):
        example, text = build(tokenizer, "multi-needle", 3000, seed)
        items = re.findall(r"is the legendary (\w+ \w+)\.\n", text)
        orders.add(tuple(items.index(item) for item in example.references))
    assert len(orders) > 6


@pytest.mark.parametrize("needles", [1, 40])
def test_too_few_or_many_needles(needles):
    with pytest.raises(ValueError, match=f"needles must be 2 to 35, not {needles}"):
        MultiNeedle(needles=needles)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_counting_stars(any_tokenizer, reasoning, seed):
    example, text = build(any_tokenizer, "counting-stars-reasoning" if reasoning else "counting-stars", 12_000, seed)
    body, _, question = text.partition("\n\n\n\nOn this moonlit and misty night, ")
    sentence = r"\nThe little penguin counted (\d+) ★\n"
    if reasoning:
        sentence = (
            r"\nThe little penguin counted \d+ ★, but found that a mistake had been made, so the counting was done "
        )
        sentence += r"again, and this time (\d+) ★ was counted correctly\.\n"
        wrong = re.findall(r"counted (\d+) ★, but", body)
        assert not set(wrong) & set(example.references) and len(wrong) == 32
    told = [(match.group(1), match.end() / len(body)) for match in re.finditer(sentence, body)]
    assert tuple(stars for stars, _ in told) == example.references
    assert [place for _, place in told] == pytest.approx([(n + 1) / 32 for n in range(32)], abs=0.05)
    assert told[-1][1] == 1.0  # the last at the end of the text
    counts = [int(stars) for stars, _ in told]
    ordered = sorted(counts)
    assert counts != ordered and all(2 <= b - a <= 6 for a, b in zip([0, *ordered], ordered, strict=False))
    assert question.endswith('Only output the results in JSON format without any explanation.\n{"little_penguin": [')
    assert "collect the correct number of ★" in question if reasoning else "collect the number of ★" in question


def test_the_number_of_stars_is_a_parameter(tokenizer):
    example = CountingStars("counting-stars", stars=3)(tokenizer, length=1000, seed=0)
    assert len(example.references) == 3
    with pytest.raises(ValueError, match="stars must be at least 1, not 0"):
        CountingStars("counting-stars", stars=0)
