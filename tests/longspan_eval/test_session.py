"""Measuring on a model: every method, told how far to reach; whatever fails is a sample, and the next is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from longspan import hf
from longspan.methods import METHODS
from longspan_eval import measure
from longspan_eval.measure import Keys, TaskPrompt
from longspan_eval.session import Session
from longspan_eval.spec import STOCK, parse_spec
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from longspan_eval.tasks.passkey import scored_passkey

LENGTHS = (320, 640)
TASK = scored_passkey("prose", 64)
PASSKEY = TASKS["passkey"]


def prompt(spec="stock", length=320, seed=1, task=TASK, **more):
    return TaskPrompt(parse_spec(spec), length, seed, task=task, **more)


@pytest.fixture
def session(model, tokenizer):
    return Session(model, tokenizer)


@pytest.fixture
def fails(monkeypatch):
    """Makes reading a prompt fail with an error."""

    def make(error):
        def read(*args, **kwargs):
            raise error

        monkeypatch.setattr(measure, "read", read)

    return make


@pytest.mark.parametrize("depths", [(0.0, 1.0), pytest.param((1.0, 0.0), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [STOCK, *METHODS])
def test_every_method_runs_at_every_length(session, name, depths):
    for length, depth in zip(LENGTHS, depths, strict=True):
        sample = session.measure(prompt(name, length, depth=depth))
        assert sample.error is None and sample.loss > 0 and sample.scored >= 63
        assert (sample.method, sample.length, sample.seed) == (name, length, 1)
        assert (sample.depth, sample.filler, sample.task) == (depth, "prose", "passkey")


def test_stock_is_the_model_without_longspan_and_full_agrees_with_it(session, model):
    stock, full = (session.measure(prompt(name, 640)) for name in (STOCK, "full"))
    assert stock.loss == pytest.approx(full.loss, rel=1e-4) and stock.prediction == full.prediction
    session.detach()
    assert model.config._attn_implementation == "sdpa"


def test_methods_that_ask_are_told_the_length():
    assert parse_spec("self-extend").reaching(4096).target_length == 4096
    for name in ("pi", "ntk", "yarn"):
        assert parse_spec(name).reaching(4096).angles.target_length == 4096
    assert parse_spec("pi").reaching(4096).resolve(512).angles.scale == 8
    assert parse_spec("dca").reaching(4096) == METHODS["dca"]()
    assert parse_spec(STOCK).reaching(4096) is None


def test_a_method_is_attached_once(session, monkeypatch):
    attached, extend = [], hf.extend
    monkeypatch.setattr(hf, "extend", lambda model, x, **more: (attached.append(x), extend(model, x, **more))[1])
    for spec, task in (("stock", TASK), ("dca:window=256", TASK), ("dca:window=256", PASSKEY)):
        assert all(session.measure(prompt(spec, seed=n, task=task)).error is None for n in range(2))
    assert len(attached) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (ValueError("PI: a rule\nis broken"), "PI: a rule is broken"),
        (IndexError("3"), "IndexError: 3 (test_session.py:"),
    ],
)
def test_what_fails_is_a_sample_and_the_next_is_not(session, model, fails, monkeypatch, error, words):
    fails(error)
    sample = session.measure(prompt("dca", depth=0.5))
    assert sample.error.startswith(words) and (sample.method, sample.length, sample.depth) == ("dca", 320, 0.5)
    assert model.config._attn_implementation == "sdpa", "nothing stays attached"
    monkeypatch.undo()
    assert session.measure(prompt("dca")).error is None


def test_parameters_that_do_not_fit_are_a_sample(session, model):
    good, bad = prompt("dca:window=256"), prompt("dca:window=300")  # the model's window is 256
    assert session.measure(good).error is None
    assert "window" in session.measure(bad).error and model.config._attn_implementation == "sdpa"
    assert session.measure(good).error is None, "it is attached again: the failure has taken it off"


def test_a_prompt_without_scored_tokens_has_no_loss(session):
    sample = session.measure(prompt(task=PASSKEY))
    assert math.isnan(sample.loss) and sample.scored == 0 and sample.error is None and sample.filler == ""


def test_the_task_says_how_long_an_answer_is_how_right_and_when_it_will_do(session):
    def sample(**more):
        task = replace(PASSKEY, score=lambda text, references: len(text) / 1000, **{"until": None, **more})
        return session.measure(prompt(length=200, task=task))

    long, short = sample(new_tokens=30), sample(new_tokens=3)
    assert long.prediction.startswith(short.prediction) and long.correct == len(long.prediction) / 1000 > short.correct
    assert (long.tokens, long.task, long.references) == (192, "passkey", ())
    stopped = sample(new_tokens=30, until=lambda text: len(text) > 4).prediction
    assert long.prediction.startswith(stopped) and 4 < len(stopped) < len(long.prediction)


def test_a_score_outside_0_to_1_is_a_fault_of_the_task(session):
    wrong = replace(PASSKEY, score=lambda text, references: 50.0)
    assert session.measure(prompt(task=wrong)).error == "passkey: a score lies in 0..1, not 50.0"


def test_a_sample_says_what_its_seconds_depend_on_and_its_key_does_not(model, tokenizer):
    session, threads = Session(model, tokenizer, kv_tier="host"), torch.get_num_threads()
    keys = Keys(Subject.of(model, tokenizer))
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            one = prompt("dca", task=PASSKEY)
            assert session.measure(one).timed_under("host", count)
            assert not {"threads", "kv_tier"} & one.depends_on(keys).keys()
    finally:
        torch.set_num_threads(threads)


def test_all_of_several_references_are_kept(session):
    def build(*args, **more):
        return replace(PASSKEY.build(*args, **more), references=("1", "2"))

    assert session.measure(prompt(task=replace(PASSKEY, build=build))).references == ("1", "2")
