"""What holds of every synthetic task: exact lengths with any tokenizer, determinism, refusals, possible answers."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan_eval.tasks import FAMILIES, TASKS

OFFICIAL = {name for name in TASKS if name.endswith("-official")}
MADE = {name: task for name, task in TASKS.items() if task.data is None and name not in OFFICIAL}
EVERY = pytest.mark.parametrize("task", MADE.values(), ids=list(MADE))
AT_DEPTHS = pytest.mark.parametrize("task", [t for t in MADE.values() if t.at_depths], ids=lambda t: t.name)
NAMES = """
    passkey passkey-prose facts key-value vt-2-hops vt-2-hops-2-chains common-words
    needle multi-needle multi-needle-3 counting-stars counting-stars-16
    counting-stars-reasoning infinitebench-kv infinitebench-number infinitebench-passkey infinitebench-math-find
    ruler-niah-single-1 ruler-niah-single-2 ruler-niah-single-3 ruler-niah-multikey-1 ruler-niah-multikey-2
    ruler-niah-multikey-3 ruler-niah-multivalue ruler-niah-multiquery ruler-vt ruler-cwe ruler-fwe
"""


def least(task, tokenizer, seed):
    """The least length, as the refusal of a shorter one names it."""
    with pytest.raises(ValueError, match=r"tokens are too few: .* takes \d+$") as refused:
        task.build(tokenizer, length=task.new_tokens + 5, seed=seed)
    return int(str(refused.value).split()[-1])


def text_of(tokenizer, example):
    return tokenizer.decode(example.input_ids, skip_special_tokens=True)


def test_the_tasks_are_these():
    assert set(MADE) >= set(NAMES.split())
    four = {f"infinitebench-{name}-official" for name in ("kv", "number", "passkey", "math-find")}
    assert four == OFFICIAL
    assert len(TASKS) == sum(map(len, FAMILIES))
    for name, task in TASKS.items():
        assert task.name == name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert task.version >= 1 and task.new_tokens >= 1 and "20" in task.paper and task.summary


@EVERY
def test_length_is_exact_from_the_least_on(task, any_tokenizer):
    shortest = least(task, any_tokenizer, 5)
    with pytest.raises(ValueError, match=f"{shortest - 1} tokens are too few: .* takes {shortest}$"):
        task.build(any_tokenizer, length=shortest - 1, seed=5)
    for length in (shortest, shortest + 1, shortest + 13, max(shortest, 4095), max(shortest, 4096), shortest + 4096):
        assert len(task.build(any_tokenizer, length=length, seed=5).input_ids) == length - task.new_tokens


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(MADE)), st.integers(2800, 9000), st.integers(0, 10**9), st.floats(0, 1))
def test_length_is_exact_whatever_is_asked(tokenizer, name, length, seed, depth):
    task = MADE[name]
    example = task.build(tokenizer, length=length, seed=seed, depth=depth if task.at_depths else None)
    assert len(example.input_ids) == length - task.new_tokens
    assert example.depth == (depth if task.at_depths else None)
    text = text_of(tokenizer, example)
    for reference in set(example.references):
        assert reference in text


@EVERY
def test_the_arguments_decide_everything(task, tokenizer):
    first, again, other = (task.build(tokenizer, length=4000, seed=seed) for seed in (7, 7, 8))
    assert first == again and first.input_ids != other.input_ids
    assert pickle.loads(pickle.dumps(task)).build(tokenizer, length=4000, seed=7) == first
    assert first.seed == 7 and len(first.references) >= 1


@EVERY
def test_a_prompt_begins_once_and_ends_where_the_answer_begins(task, spaced_tokenizer, byte_tokenizer):
    example = task.build(spaced_tokenizer, length=5000, seed=1)
    begin = spaced_tokenizer.bos_token_id
    assert example.input_ids[0] == begin and example.input_ids.count(begin) == 1
    assert spaced_tokenizer.unk_token_id not in example.input_ids
    example = task.build(byte_tokenizer, length=9000, seed=1)
    assert not text_of(byte_tokenizer, example)[-1].isspace()


@EVERY
def test_no_space_comes_in_between_pieces(task, spaced_tokenizer):
    if task.name.startswith("passkey"):
        pytest.skip("the passkey prompt is put together as it was for the results that are committed")
    text = text_of(spaced_tokenizer, task.build(spaced_tokenizer, length=5000, seed=3))
    assert "  " not in text and " \n" not in text


@EVERY
def test_the_answer_fits(task, tokenizer, spaced_tokenizer):
    for seed in range(14):
        example = task.build(tokenizer, length=4000, seed=seed)
        text = " ".join(example.references)
        assert task.score(f" {', '.join(example.references)}", example.references) == 1.0
        for each in (tokenizer, spaced_tokenizer):
            assert len(each(f" {text}", add_special_tokens=False)["input_ids"]) <= task.new_tokens


@EVERY
def test_an_empty_answer_scores_nothing(task, tokenizer):
    assert task.score("", task.build(tokenizer, length=4000, seed=0).references) == 0.0


@EVERY
def test_refusals(task, tokenizer):
    with pytest.raises(ValueError, match="leave record at None"):
        task.build(tokenizer, length=4000, seed=0, record={})
    if not task.at_depths:
        with pytest.raises(ValueError, match=rf"{task.name} has no one place to put at depth 0\.5"):
            task.build(tokenizer, length=4000, seed=0, depth=0.5)
        return
    for depth in (-0.1, 1.01):
        with pytest.raises(ValueError, match=rf"depth must lie in 0\.\.1, not {depth}"):
            task.build(tokenizer, length=4000, seed=0, depth=depth)


@AT_DEPTHS
def test_what_is_asked_for_lies_once_and_at_its_depth(task, any_tokenizer):
    places = []
    for depth in (0.0, 0.1, 0.5, 0.9, 1.0):
        example = task.build(any_tokenizer, length=9000, seed=1, depth=depth)
        assert example.depth == depth and example.placed == pytest.approx(depth, abs=0.03)
        text = text_of(any_tokenizer, example)
        answer = example.references[-1]
        named = 2 if "Remember it" in text else 1
        assert text.count(answer) == named
        places.append(text.index(answer) / len(text))
        assert places[-1] == pytest.approx(depth, abs=0.08)
    assert places == sorted(places) and len(set(places)) == 5


@AT_DEPTHS
def test_without_a_depth_the_seed_decides_it(task, tokenizer):
    examples = [task.build(tokenizer, length=4000, seed=seed) for seed in range(12)]
    depths = [example.depth for example in examples]
    assert len(set(depths)) == 12 and min(depths) < 0.3 and max(depths) > 0.7
    assert all(abs(example.placed - example.depth) < 0.09 for example in examples)


@EVERY
def test_a_longer_prompt_of_a_seed_asks_the_same(task, tokenizer):
    short, long = (task.build(tokenizer, length=length, seed=11) for length in (4100, 9000))
    if task.name != "infinitebench-math-find":  # whose answer is a matter of the whole list
        assert short.references == long.references
    assert short.input_ids[-12:] == long.input_ids[-12:] and short.depth == long.depth


@EVERY
def test_64k_tokens(task, tokenizer):
    assert len(task.build(tokenizer, length=65_536, seed=0).input_ids) == 65_536 - task.new_tokens
