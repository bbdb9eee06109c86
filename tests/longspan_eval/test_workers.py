"""Asking: what fails is a sample, a dead worker is replaced, and no prompt is asked twice."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

import pytest
import torch

from longspan import hf
from longspan.bundled import load_bundled
from longspan.errors import LongspanError
from longspan_eval import runner, workers
from longspan_eval.plan import STEPS, schedule
from longspan_eval.rows import parse_row
from longspan_eval.scored_passkey import plan_cell
from longspan_eval.subject import Subject
from longspan_eval.workers import Asker, run

SUBJECT = Subject(512, "a" * 64)


def cell(spec="stock", prompts=3, multiple=1.0, filler="noise"):
    return plan_cell(SUBJECT, parse_row(spec), multiple, filler, prompts)


def parts(*cells):
    return schedule(cells, lambda c: [], lambda c, part: (part,))


@pytest.fixture
def asker(model, tokenizer):
    return Asker(model, tokenizer)


def test_an_asker_attaches_each_row_once(asker, model, monkeypatch):
    seen = []
    real = workers.run_example
    monkeypatch.setattr(
        workers, "run_example", lambda m, *a: (seen.append(m.config._attn_implementation), real(m, *a))[1]
    )
    attached = []
    extend = hf.extend
    monkeypatch.setattr(hf, "extend", lambda m, x: (attached.append(x), extend(m, x))[1])
    for part in parts(cell("stock", 2), cell("dca:window=256", 2), cell("dca:window=256", 1, filler="prose")):
        for ask in part:
            sample = asker(ask)
            assert sample.error is None, sample.error
            assert (sample.method, sample.length, sample.seed) == (ask.row.label, 512, ask.seed)
            assert (sample.depth, sample.filler, sample.scored) == (ask.depth, ask.filler, 256)
    assert seen == ["sdpa", "sdpa", "longspan", "longspan", "longspan"] and len(attached) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (ValueError("PI: a rule\nis broken"), "PI: a rule is broken"),
        (IndexError("3"), "IndexError: 3 (test_workers.py:"),
    ],
)
def test_what_fails_is_a_sample_and_the_next_is_not(asker, monkeypatch, error, words):
    def fails(*args, **kwargs):
        raise error

    first, second = cell(prompts=2).asks
    with monkeypatch.context() as patched:
        patched.setattr(runner, "read", fails)
        assert asker(first).error.startswith(words)
    assert asker(second).error is None


def test_parameters_that_do_not_fit_are_a_sample_and_nothing_stays_attached(asker, model):
    good = cell("dca:window=256", 2).asks
    assert asker(good[0]).error is None
    assert "window" in asker(cell("dca:window=300").asks[0]).error  # the model's window is 256
    assert asker(cell("stock").asks[0]).error is None and model.config._attn_implementation == "sdpa"
    assert asker(good[0]).error is None
    assert "window" in asker(cell("dca:window=300").asks[0]).error
    # The row from before is attached again: the failure has taken it off.
    assert asker(good[1]).error is None and model.config._attn_implementation == "longspan"


def test_two_workers_answer_everything_once_and_agree_with_one_process():
    cells = [cell("stock", 4), cell("dca", 4, filler="prose"), cell("dca:window=600", 3)]
    answers = {}
    for ask, sample in run(parts(*cells), load_bundled, 2):
        assert ask.key not in answers and sample.seed == ask.seed
        answers[ask.key] = sample
    good = [ask for c in cells[:2] for ask in c.asks]
    assert all(answers[ask.key].error is None for ask in good)
    bad = [answers[ask.key] for ask in cells[2].asks if ask.key in answers]
    assert 1 <= len(bad) <= 2 and "window" in bad[0].error  # after the first error no more are handed out
    asker = Asker(*load_bundled())
    for ask in (good[1], good[5]):
        same = asker(ask)
        assert (same.prediction, same.loss) == (answers[ask.key].prediction, pytest.approx(answers[ask.key].loss))
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_a_sample_and_is_replaced():
    answers = []
    for ask, sample in run(parts(cell("stock", 4), cell("dca", 2)), load_bundled, 1):
        answers.append((ask.row.label, sample.error))
        if len(answers) == 1:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            worker.join()
    assert [label for label, _ in answers] == ["stock", "stock", "dca", "dca"]
    assert [error is None for _, error in answers] == [True, False, True, True]
    assert "killed" in answers[1][1] and "memory" in answers[1][1]


@pytest.mark.parametrize(
    ("load", "words"), [(partial(load_bundled, device="moon"), "cannot load the model: RuntimeError"), (exit, "ended")]
)
def test_a_model_that_does_not_load_is_an_error(load, words):
    with pytest.raises(LongspanError, match=words):
        list(run(parts(cell()), load, 1))
    assert not multiprocessing.active_children()


def test_after_the_deadline_nothing_is_asked():
    assert list(run(parts(cell()), load_bundled, 1, deadline=time.monotonic())) == []


def test_nothing_to_ask_starts_nothing():
    assert list(run([], pytest.fail, 2)) == []
    with pytest.raises(LongspanError, match="at least 1"):
        list(run([], pytest.fail, 0))


def test_the_last_part_is_shared():
    made = parts(cell(prompts=STEPS[0]))
    queue = workers._Queue(made)
    first, second = object(), object()
    taken = [queue.take(first if n % 2 else second).seed for n in range(STEPS[0])]
    assert sorted(taken) == list(range(STEPS[0])) and queue.take(first) is None is queue.take(second)
