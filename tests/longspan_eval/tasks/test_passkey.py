"""The passkey task: exact lengths, whole needles, the same ending at every length, nothing scored twice."""

from __future__ import annotations

import pytest

from longspan_eval.filler import Filler
from longspan_eval.tasks.passkey import ANSWER_ROOM, build

FILLERS = pytest.mark.parametrize("filler", ["noise", "prose"])


@FILLERS
@pytest.mark.parametrize("length", [150, 504, 512, 2048, 4099])
@pytest.mark.parametrize("depth", [None, 0.0, 0.37, 1.0])
def test_length_is_exact_and_needle_whole(tokenizer, filler, length, depth):
    example = build(tokenizer, length=length, seed=length, depth=depth, filler=filler)
    assert len(example.input_ids) == length
    text = tokenizer.decode(example.input_ids)
    assert f"\nThe pass key is {example.answer}. Remember it. {example.answer} is the pass key.\n" in text
    assert text.endswith("\nWhat is the pass key? The pass key is")
    assert text.startswith("<s>There is an important info hidden")
    assert len(example.answer) == 5 and example.answer.isdigit() and example.references == (example.answer,)
    assert depth is None or example.depth == depth
    if length >= 2048:
        assert abs(example.placed - example.depth) < 0.05


def test_room_for_the_answer_is_left_free(tokenizer):
    assert len(build(tokenizer, length=512, seed=0, answer_room=ANSWER_ROOM).input_ids) == 512 - ANSWER_ROOM


@FILLERS
def test_the_needle_follows_a_sentence(tokenizer, filler):
    for seed in range(8):
        text = tokenizer.decode(build(tokenizer, length=2048, seed=seed, filler=filler).input_ids)
        assert text.split("\nThe pass key is")[0].rstrip(" ").endswith((".", "\n"))


@FILLERS
@pytest.mark.parametrize("seed", range(4))
def test_prompts_of_one_seed_end_alike_at_every_length(tokenizer, filler, seed):
    base = build(tokenizer, length=512, depth=0.0, seed=seed, filler=filler, targets=256)
    assert len(base.scored) == 256
    for length, depth in [(1024, 0.5), (4096, 0.0), (4096, 0.75), (4096, 1.0), (8200, 0.25)]:
        long = build(tokenizer, length=length, depth=depth, seed=seed, filler=filler, targets=256)
        assert long.answer == base.answer
        assert [base.input_ids[n] for n in base.scored] == [long.input_ids[n] for n in long.scored]
        if depth < 1:  # not only the scored tokens: all that follows the passkey of the shorter one
            assert base.input_ids[-400:] == long.input_ids[-400:] or depth == 0.75


@pytest.mark.parametrize("depth", [0.0, 0.7, 0.95, 1.0])
def test_only_prose_is_scored(tokenizer, depth):
    example = build(tokenizer, length=512, depth=depth, seed=1, filler="prose", targets=200)
    assert len(example.scored) in (199, 200) and len(set(example.scored)) == len(example.scored)
    scored = tokenizer.decode([example.input_ids[n] for n in example.scored])
    assert example.answer not in scored and "pass key" not in scored
    whole = build(tokenizer, length=2048, depth=0.0, seed=1, filler="prose", targets=200)
    assert scored in tokenizer.decode(whole.input_ids) or len(example.scored) == 199


def test_the_token_after_the_passkey_is_not_scored(tokenizer):
    example = build(tokenizer, length=512, depth=0.7, seed=1, filler="prose", targets=250)
    assert len(example.scored) == 249
    gap = next(a for a, b in zip(example.scored, example.scored[1:], strict=False) if b > a + 1)
    skipped = tokenizer.decode(example.input_ids[gap + 1 : example.scored[example.scored.index(gap) + 1]])
    assert skipped.startswith("\nThe pass key is") and "is the pass key.\n" in skipped


def test_a_text_shorter_than_the_prompt_is_read_round(tokenizer):
    hay = Filler(tokenizer, "Snow fell on the hills.\nNobody came.\n")
    assert tokenizer.decode(hay.before(3, 900)).count("Nobody came.") > 5
    with pytest.raises(ValueError, match="empty"):
        Filler(tokenizer, "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"length": 20}, r"20 tokens are too few: the task takes \d\d$"),
        ({"length": 300, "targets": 256}, "256 scored tokens takes 3"),
        ({"depth": 1.5}, "depth must lie in 0..1, not 1.5"),
        ({"filler": "music"}, "noise, prose, not 'music'"),
        ({"record": {}}, "passkey is synthetic"),
    ],
)
def test_refuses_what_cannot_be_built(tokenizer, given, words):
    with pytest.raises(ValueError, match=words):
        build(tokenizer, **{"length": 300, "seed": 0, **given})


def test_the_least_length_it_names_will_do(tokenizer):
    with pytest.raises(ValueError, match="takes") as refused:
        build(tokenizer, length=300, seed=0, targets=256)
    least = int(str(refused.value).split()[-1])
    assert len(build(tokenizer, length=least, seed=0, depth=1.0, targets=256).scored) == 256


@pytest.mark.parametrize("target", [0, 3, 7, 30, 31, 32])
def test_sentence_end_is_the_nearest(tokenizer, target):
    hay = Filler(tokenizer, "One. Two. Three four five six seven eight nine. Ten.")
    ids = hay.before(0, len(tokenizer("One. Two. Three four five six seven eight nine. Ten.").input_ids) - 1)
    ends = [0, *(n + 1 for n, token in enumerate(ids) if tokenizer.decode([token]) == "."), len(ids)]
    found = hay.sentence_end(ids, target)
    assert found in ends and abs(found - target) == min(abs(end - target) for end in ends)
