"""Turns: a token each for those that have but tokens to compute, and whole prefill chunks in between."""

from __future__ import annotations

import threading
import time

import pytest

from longspan.serve.engine import Engine, QueueFull
from support.serving import wait_for


class Job:
    """Does nothing so many times, and notes that it did."""

    def __init__(self, name, steps, done, *, long=False, gate=None):
        self.name, self.left, self.done, self.long, self.gate = name, steps, done, long, gate
        self.cancelled = self.closed = False
        self.error = None

    def step(self):
        if self.gate is not None:
            assert self.gate.wait(10)
        self.done.append(self.name)
        self.left -= 1
        if self.left == -1:
            raise ValueError(self.name)
        return self.left > 0

    def close(self):
        self.closed = True

    def fail(self, error):
        self.error = error


@pytest.fixture
def engine():
    """One that has not begun, so that jobs can be put in front of it."""
    engine = Engine(max_running=3, max_queue=4)
    yield engine
    engine.stop()


def run(engine):
    engine.start()
    wait_for(lambda: not engine.running and not engine.waiting and not engine.readings, 10)


def test_requests_take_turns(engine):
    done = []
    for name in "abc":
        engine.submit(Job(name, 3, done))
    run(engine)
    assert "".join(done) == "abcabcabc"


def test_those_beyond_the_limit_wait(engine):
    done = []
    for name in "abcd":
        engine.submit(Job(name, 2, done))
    with pytest.raises(QueueFull):
        engine.submit(Job("e", 1, done))
    run(engine)
    assert "".join(done) == "abcabcdd"


def test_texts_are_read_one_after_the_other_and_share_with_long_prompts(engine):
    done = []
    for name in "xy":
        engine.read(Job(name, 2, done, long=True))
    engine.submit(Job("p", 3, done, long=True))
    run(engine)
    assert "".join(done) == "pxpxypy" and engine.prefill_chunks == 7


def test_a_question_waits_for_the_piece_that_runs(engine):
    done, gate = [], threading.Event()
    engine.read(Job("x", 50, done, long=True, gate=gate))
    engine.start()
    engine.submit(Job("q", 1, done))
    gate.set()
    wait_for(lambda: not engine.readings, 10)
    assert done.index("q") <= 2


def test_who_went_away_is_closed_and_takes_no_turn(engine):
    done = []
    gone, other = Job("g", 5, done), Job("o", 2, done)
    gone.cancelled = True
    engine.submit(gone)
    engine.submit(other)
    run(engine)
    assert gone.closed and "".join(done) == "oo"


def test_one_that_went_away_while_it_waited_makes_room(engine):
    jobs = [Job(str(n), 1, []) for n in range(4)]
    for job in jobs:
        engine.submit(job)
    jobs[0].cancelled = True
    engine.submit(Job("e", 1, []))
    with pytest.raises(QueueFull):
        engine.submit(Job("f", 1, []))


def test_one_that_fails_fails_alone(engine):
    done = []
    bad, good = Job("b", 0, done), Job("g", 3, done)
    engine.submit(bad)
    engine.submit(good)
    run(engine)
    assert isinstance(bad.error, ValueError) and done.count("g") == 3


def test_draining_answers_requests_and_leaves_texts(engine):
    done = []
    text = Job("x", 10**9, done, long=True)
    engine.read(text)
    engine.submit(Job("q", 3, done))
    engine.start()
    engine.drain()
    assert done.count("q") == 3 and text.left > 0
    for _ in range(2):  # the step that ran meanwhile ends before the first of these calls
        called, left = threading.Event(), text.left
        engine.call_between_steps(called.set)
        assert called.wait(10)
    assert text.left == left
    engine.stop()
    assert text.closed


def test_draining_waits_for_the_answers(engine):
    done, gate = [], threading.Event()
    engine.submit(Job("q", 3, done, gate=gate))
    engine.start()
    draining = threading.Thread(target=engine.drain, daemon=True)
    draining.start()
    draining.join(0.1)
    assert draining.is_alive()
    gate.set()
    draining.join(10)
    assert not draining.is_alive() and done.count("q") == 3


def test_draining_ends_where_nobody_answers(engine):
    engine.submit(Job("q", 3, []))
    draining = threading.Thread(target=engine.drain, daemon=True)
    draining.start()
    draining.join(10)
    assert not draining.is_alive()


def test_answers_have_as_much_time_as_prefill_chunks(engine, monkeypatch):
    done, seconds = [], {"q": 1, "x": 3}
    monkeypatch.setattr(time, "perf_counter", lambda: sum(seconds[name] for name in done))
    engine.submit(Job("q", 10, done))
    engine.read(Job("x", 4, done, long=True))
    run(engine)
    assert "".join(done) == "qxqqqxqqqxqqqx"


def test_calls_run_between_steps(engine):
    seen = []
    engine.start()
    engine.call_between_steps(lambda: seen.append(threading.current_thread().name))
    wait_for(lambda: seen, 10)
    assert seen == ["longspan-engine"]


def test_the_steps_of_a_turn_are_computed_ahead():
    done, turns = [], []
    engine = Engine(3, 4, lambda jobs: turns.append("".join(job.name for job in jobs)))
    gone = Job("g", 5, done)
    gone.cancelled = True
    for job in (Job("a", 1, done), gone, Job("b", 2, done), Job("p", 2, done, long=True)):
        engine.submit(job)
    run(engine)
    engine.stop()
    assert turns[:2] == ["ab", "b"] and "".join(done).replace("p", "") == "abb"
