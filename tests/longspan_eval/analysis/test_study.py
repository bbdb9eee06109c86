"""What is looked at when an answer begins, and the figures of several prompts."""

from __future__ import annotations

import math

import pytest
import torch

import longspan
from longspan.bundled import load_bundled
from longspan_eval.analysis import study
from longspan_eval.analysis.metrics import Chunking
from longspan_eval.analysis.study import Found, Inspection, Question, chunks_for, inspect, summarise
from longspan_eval.generate import read
from longspan_eval.reproduce.ablations import AblatedLongHeads
from longspan_eval.tasks import TASKS


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()


@pytest.fixture(autouse=True)
def as_it_was(bundled):
    yield
    longspan.restore(bundled[0])


@pytest.fixture(scope="module")
def prompt(bundled):
    return Question.of_task(TASKS["passkey-prose"], bundled[1], length=700, seed=1)


@pytest.mark.parametrize("name", ["infinitebench-math-find", "ruler-cwe"])
def test_a_task_whose_answers_stand_all_over_the_prompt(bundled, name):
    with pytest.raises(longspan.LongspanError, match=f"{name}: its .* answers stand at .* places"):
        Question.of_task(TASKS[name], bundled[1], length=2048, seed=0)


def test_the_prompt_of_a_task(bundled, prompt):
    _, tokenizer = bundled
    assert len(prompt.ids) == 692 and prompt.seed == 1 and len(prompt.answers) == 2
    key = {tokenizer.decode(prompt.ids[a:b]).strip() for a, b in prompt.answers}
    assert len(key) == 1
    (key,) = key
    assert prompt.score(f" {key}.") == 1.0 and prompt.score(" 1.") == 0.0


@pytest.mark.parametrize(
    ("method", "units", "chunks"),
    [
        (longspan.LongHeads(score="bounds"), (2, 13), 22),
        (longspan.ESA(), (1, 128), 22),
        (longspan.InfLLM(), (1, 4), 23),
    ],
)
def test_one_prompt(bundled, prompt, method, units, chunks):
    model, tokenizer = bundled
    longspan.extend(model, method)
    seen = inspect(model, tokenizer, prompt)
    assert [one.layer for one in seen.choices] == list(range(model.config.num_hidden_layers)) and len(
        seen.chunks
    ) == chunks
    for one in seen.choices:
        # The last token chose for itself.
        assert tuple(one.units.shape) == units and one.first == one.query == len(seen.ids) - 1
    assert seen.answers == seen.chunks.holding(prompt.answers)
    assert seen.split is any(len(seen.chunks.holding([place])) > 1 for place in prompt.answers)
    assert 0 < seen.cover <= 1 and 0 <= seen.gini < 1 and 0 <= seen.hit1 <= seen.hit5 <= 1
    if method.name != "infllm":
        assert seen.score == 1.0
        # Reading the last token alone changes nothing about the answer.
        assert read(model, tokenizer, prompt.ids, max_new_tokens=8, until=prompt.until).text == seen.prediction


def test_the_query_is_where_the_answer_begins(bundled, prompt):
    """The bundled tokenizer keeps a space apart from the digits after it: the digits begin one query later."""
    model, tokenizer = bundled
    longspan.extend(model, longspan.LongHeads(score="bounds"))
    seen = inspect(model, tokenizer, prompt)
    added = seen.ids[len(prompt.ids) :]
    assert seen.ids[: len(prompt.ids)] == prompt.ids and not tokenizer.decode(added).strip()
    logits = model(torch.tensor([seen.ids])).logits[0, -1]
    first = tokenizer.decode([int(logits.argmax())]).strip()
    assert first and seen.prediction.strip().startswith(first)
    silent = inspect(model, tokenizer, Question(prompt.ids, prompt.answers, new_tokens=0))
    assert silent.ids == prompt.ids and silent.choices[0].query == len(prompt.ids) - 1


def test_hits_are_those_of_the_scores(bundled, prompt, monkeypatch):
    """By hand, from the recorded scores: heads whose 5 best chunks have the answer's, of all layers by 2 groups.

    The first chunk and the local ones are kept anyway, and have no part in it.
    """
    model, tokenizer = bundled
    longspan.extend(model, longspan.LongHeads(score="bounds"))
    seen = inspect(model, tokenizer, prompt)
    kept = set(seen.chunks.holding(seen.choices[0].kept))
    assert len(kept) == 3 and not kept & set(seen.answers)
    hits = [
        bool(set([n for n in head.argsort(descending=True).tolist() if n not in kept][:5]) & set(seen.answers))
        for one in seen.choices
        for head in one.scores
    ]
    assert len(hits) == 2 * model.config.num_hidden_layers and seen.hit5 == pytest.approx(sum(hits) / len(hits))
    monkeypatch.setattr(study, "hit_rate", lambda choices, chunks, answers, top: top)
    seen = inspect(model, tokenizer, prompt)
    assert (seen.hit1, seen.hit5) == (1, 5)


def test_without_an_answer_or_scores(bundled, prompt):
    model, tokenizer = bundled
    longspan.extend(model, "longheads")
    seen = inspect(model, tokenizer, Question(prompt.ids))
    assert math.isnan(seen.hit1) and math.isnan(seen.score) and seen.prediction == "" and seen.split is None
    longspan.extend(model, AblatedLongHeads(pick="random"))
    seen = inspect(model, tokenizer, prompt)
    assert math.isnan(seen.hit5) and not math.isnan(seen.score)


def test_a_text_inside_the_window(bundled, prompt):
    model, tokenizer = bundled
    with pytest.raises(longspan.LongspanError, match="not extended"):
        inspect(model, tokenizer, prompt)
    longspan.extend(model, "longheads")
    with pytest.raises(longspan.LongspanError, match="512 tokens fit the window of 512"):
        inspect(model, tokenizer, Question(prompt.ids[:512]))


def test_chunks_of_methods():
    assert chunks_for(longspan.LongHeads(chunk_length=16).resolve(512), 512, 40) == Chunking((0, 16, 32), 40)
    assert chunks_for(longspan.ESA().resolve(512), 512, 40) == Chunking((0, 32), 40)
    assert chunks_for(longspan.InfLLM().resolve(512), 512, 45) == Chunking((0, 8, 40), 45)
    assert chunks_for(longspan.ESA().resolve(512), 512, 40, 25) == Chunking((0, 25), 40)


def made(score, places, cover=0.5, hit=0.25):
    chunks = Chunking((0, 4, 8), 10)
    prompt = Question([1] * 10, tuple(places))
    return Inspection(prompt, prompt.ids, chunks, [], chunks.holding(places), cover, 0.1, hit, hit, "", score)


@pytest.mark.parametrize(
    ("places", "split"),
    [
        ([], None),
        ([(4, 8)], False),
        ([(3, 5)], True),
        ([(1, 3), (5, 7)], False),  # whole in each of two chunks, as a passkey that is told twice
        ([(1, 3), (7, 9)], True),
    ],
)
def test_split_is_cut_by_a_border(places, split):
    assert made(1.0, places).split is split


def test_a_row():
    nan = math.nan
    looks = [made(1.0, [(5, 6)], 0.2), made(0.0, [(6, 9)], 0.6, 0.75), made(1.0, [(2, 5)], 0.4, nan)]
    looks += [made(nan, [], 0.4, nan)]
    row = summarise(12, looks)
    assert (row.length, row.tokens, row.chunks, row.n) == (12, 10, 3, 4)
    assert row.cover == pytest.approx(0.4) and row.gini == pytest.approx(0.1)
    assert row.hit1 == pytest.approx(0.5) and row.hit5 == pytest.approx(0.5)
    assert (row.found, row.split, row.whole) == (Found(2, 3), Found(1, 2), Found(1, 1))
    assert row.split.rate == 0.5 and math.isnan(Found(0, 0).rate)
    assert row.found.interval == pytest.approx((0.2077, 0.9385), abs=1e-4)
    with pytest.raises(ValueError, match="nothing"):
        summarise(12, [])


def test_inference_mode_leaves_the_model(bundled, prompt):
    model, tokenizer = bundled
    longspan.extend(model, "esa")
    inspect(model, tokenizer, prompt)
    assert not torch.is_inference(next(model.parameters()))
