"""Worker processes: a dead one is replaced, and nothing is measured twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from longspan.errors import LongspanError
from longspan_eval import pool
from longspan_eval.cell import Cell
from longspan_eval.measure import TaskPrompt
from longspan_eval.pool import Queue
from longspan_eval.reduce import count
from longspan_eval.schedule import STEPS, CellPlan
from longspan_eval.session import bundled
from longspan_eval.spec import parse_spec
from longspan_eval.tasks import TASKS
from longspan_eval.workers import run


def cell(spec="stock", prompts=3):
    measures = tuple(TaskPrompt(parse_spec(spec), 512, n, task=TASKS["passkey"]) for n in range(prompts))
    return Cell(spec, "512", count, measures)


def parts(*cells):
    return CellPlan(cells, lambda one: f"{one.spec.label} {one.seed}").left({})


@pytest.mark.long
def test_two_workers_answer_everything_once_and_agree_with_one_process():
    answers = {}
    for request, sample in run(
        parts(cell("stock", 4), cell("dca", 4), cell("dca:window=600")), load=bundled, workers=2
    ):
        assert request.key not in answers and sample.seed == request.measure.seed
        answers[request.key] = sample
    bad = [sample for key, sample in answers.items() if key.startswith("dca:")]
    assert 1 <= len(bad) <= 2 and "window" in bad[0].error  # after the first error no more are handed out
    assert sum(sample.error is None for sample in answers.values()) == 8
    session = bundled()
    for one in (cell("stock").measures[1], cell("dca").measures[2]):
        assert session.measure(one).prediction == answers[f"{one.spec.label} {one.seed}"].prediction
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_a_sample_and_is_replaced():
    answers = []
    for request, sample in run(parts(cell("stock", 4), cell("dca", 2)), load=bundled, workers=1):
        answers.append((request.measure.spec.label, sample.error))
        if len(answers) == 1:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            worker.join()
    assert [label for label, _ in answers] == ["stock", "stock", "dca", "dca"]
    assert [error is None for _, error in answers] == [True, False, True, True]
    assert "killed" in answers[1][1] and "memory" in answers[1][1]


@pytest.mark.parametrize(
    ("load", "words"), [(partial(bundled, device="moon"), "cannot load the model: RuntimeError"), (exit, "ended")]
)
def test_a_model_that_does_not_load_is_an_error(load, words):
    with pytest.raises(LongspanError, match=words):
        list(run(parts(cell()), load=load, workers=1))
    assert not multiprocessing.active_children()


def test_after_the_deadline_nothing_is_asked():
    assert list(run(parts(cell()), load=bundled, workers=1, deadline=time.monotonic())) == []


def test_nothing_to_ask_starts_nothing():
    assert list(run([], load=pytest.fail, workers=2)) == []
    with pytest.raises(LongspanError, match="at least 1"):
        list(run([], load=pytest.fail, workers=0))


def test_the_last_part_is_shared():
    queue = Queue(parts(cell(prompts=STEPS[0])))
    first, second = object(), object()
    taken = [queue.take(first if n % 2 else second).measure.seed for n in range(STEPS[0])]
    assert sorted(taken) == list(range(STEPS[0])) and queue.take(first) is None is queue.take(second)


@pytest.mark.hostile
def test_a_worker_that_is_begun_is_among_those_to_end():
    """A signal while the second starts finds both, or one."""
    killed = []

    class Begun:
        connection = None

        def __init__(self, *given):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

        def kill(self):
            killed.append(self)

    crew = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started deaf to it
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.join(crew, Begun)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(crew) == 1 and not killed
