"""InfiniteBench's synthetic tasks: the data is what the question assumes, and fills the length."""

from __future__ import annotations

import ast
import json
import re

import pytest

from longspan_eval.tasks import TASKS
from longspan_eval.tasks.fragments import piece
from longspan_eval.tasks.infinitebench_synthetic import FINDS, LINES, NUMBERS, PAIRS

HIDDEN = (
    "There is an important info hidden inside a lot of irrelevant text. Find it{}. I will quiz you about the important "
)
HIDDEN += "information there.\n"


def build(tokenizer, name, length, seed, depth=None):
    example = TASKS[f"infinitebench-{name}"].build(tokenizer, length=length, seed=seed, depth=depth)
    return example, tokenizer.decode(example.input_ids, skip_special_tokens=True)


def data_of(text):
    """The JSON object of a KV prompt."""
    return json.loads(text.partition("JSON data:\n")[2].partition("\n\n\nKey: ")[0])


@pytest.mark.parametrize("seed", range(4))
def test_kv_is_an_object_with_the_key(any_tokenizer, seed):
    example, text = build(any_tokenizer, "kv", 6000, seed, 0.5)
    pairs = data_of(text)
    key = re.search(r'\n\n\nKey: "([0-9a-f-]{36})"\nThe value associated with the specified key is:$', text).group(1)
    assert pairs[key] == example.answer and len(pairs) > 20
    assert len({*pairs, *pairs.values()}) == 2 * len(pairs)
    assert abs(list(pairs).index(key) - (len(pairs) - 1) / 2) <= 1
    assert text.startswith("Extract the value corresponding to the specified key in the JSON object below.\n")
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", word) for word in pairs.values())


@pytest.mark.parametrize(("depth", "place"), [(0.0, 0), (1.0, -1)])
def test_kv_at_the_ends(any_tokenizer, depth, place):
    example, text = build(any_tokenizer, "kv", 5000, 3, depth)
    assert list(data_of(text).values())[place] == example.answer and example.placed == depth


def test_kv_leaves_less_than_a_pair(byte_tokenizer):
    for length in range(4000, 4100, 9):
        _, text = build(byte_tokenizer, "kv", length, 1)
        left_over = text.partition("below.\n")[2].partition("\nJSON data:")[0]
        assert len(left_over) < len(', "": ""') + 72


def test_kv_of_one_pair(byte_tokenizer):
    with pytest.raises(ValueError, match=r"takes \d+$") as refused:
        build(byte_tokenizer, "kv", 100, 0)
    example, text = build(byte_tokenizer, "kv", int(str(refused.value).split()[-1]), 0)
    assert list(data_of(text).values()) == [example.answer] and example.placed == 0.0


@pytest.mark.parametrize(
    ("name", "thing", "memorize"), [("number", "sequence of digits", ""), ("passkey", "pass key", " and memorize them")]
)
def test_hidden_digits(any_tokenizer, name, thing, memorize):
    example, text = build(any_tokenizer, name, 3000, 2, 0.4)
    digits = example.answer
    assert text.startswith(HIDDEN.format(memorize))
    assert text.endswith(f"There and back again.\n\n\nWhat is the {thing}?\n\nThe {thing} is")
    assert text.count(f"again.\nThe {thing} is {digits}. Remember it. {digits} is the {thing}.\nThe grass is") == 1
    drawn = [TASKS[f"infinitebench-{name}"].build(any_tokenizer, length=3000, seed=n).answer for n in range(30)]
    assert len(set(drawn)) == 30
    for digits in drawn:
        assert digits.isdigit() and len(digits) == (10 if name == "number" else 5)
        runs = re.findall(r"((\d)\2*)", digits)
        assert len(runs) <= 5  # ten digits are five, some of them repeated where they stand


@pytest.mark.parametrize("seed", range(14))
def test_math_find_is_right(any_tokenizer, seed):
    example, text = build(any_tokenizer, "math-find", 1500 + seed, seed)
    verb, kind = re.match(r"(Find|Calculate) the (.+) number from the list below:\n", text).groups()
    assert kind == list(FINDS)[seed % 7] and verb == ("Calculate" if kind == "median" else "Find")
    assert text.endswith(
        f"]\n\nYou should answer with only one number, no other words. The {kind} number of the list is:"
    )
    numbers = ast.literal_eval(text[text.index("[") : text.index("]") + 1])
    ordered = sorted(set(numbers))
    golden = {
        "largest": max(numbers),
        "second largest": max(n for n in numbers if n != max(numbers)),
        "third largest": ordered[len(ordered) - 3],
        "smallest": min(numbers),
        "second smallest": min(n for n in numbers if n != min(numbers)),
        "third smallest": ordered[2],
        "median": sorted(numbers)[(len(numbers) - 1) // 2],
    }
    assert example.references == (str(golden[kind]),)
    assert 0 <= ordered[0] <= ordered[-1] <= 99 and len(numbers) > 200
    assert kind != "median" or len(numbers) % 2 == 1
    left_over = text.partition("below:\n")[2].partition("\n[")[0]
    # No number more would have fitted; two of them, where the list has to have an odd number.
    longest = max(len(piece(any_tokenizer, f" {number},")) for number in range(100))
    assert len(piece(any_tokenizer, left_over)) < (2 if kind == "median" else 1) * longest


def test_math_find_answers_differ(tokenizer):
    answers = {TASKS["infinitebench-math-find"].build(tokenizer, length=3000, seed=7 * n).answer for n in range(20)}
    assert len(answers) > 8


def test_the_published_sizes(tokenizer):
    _, text = build(tokenizer, "math-find-official", 250_000, 1)
    assert len(ast.literal_eval(text[text.index("[") : text.index("]") + 1])) == NUMBERS == 60_000
    assert "grass" not in text
    for name in ("number-official", "passkey-official"):
        example, text = build(tokenizer, name, 250_000, 1, 0.5)
        assert (
            text.count("\nThe grass is green. The sky is blue. The sun is yellow. Here we go. There") == LINES == 5220
        )
        assert example.placed == 0.5


@pytest.mark.parametrize("name", ["kv-official", "number-official", "passkey-official", "math-find-official"])
def test_the_published_sizes_have_a_least_length_and_do_not_grow(tokenizer, name):
    with pytest.raises(ValueError, match=f"100000 tokens are too few: infinitebench-{name} takes ") as refused:
        build(tokenizer, name, 100_000, 1)
    least = int(str(refused.value).split()[-1])
    task = TASKS[f"infinitebench-{name}"]
    example, text = build(tokenizer, name, least, 1)
    assert name != "kv-official" or len(data_of(text)) == PAIRS == 2500
    assert len(example.input_ids) == least - task.new_tokens
    assert build(tokenizer, name, least + 999, 1)[0] == example
