"""One prompt on a model as it is: every method, told how far to reach; running out of memory is a sample."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from longspan.errors import out_of_memory
from longspan.hf import restore
from longspan.methods import METHODS
from longspan_eval import runner
from longspan_eval.passkey import build
from longspan_eval.results import cell
from longspan_eval.rows import STOCK, parse_row
from longspan_eval.runner import run_example
from longspan_eval.scored_passkey import scored_passkey

LENGTHS = (320, 640)
TASK = scored_passkey("prose", 64)


def sweep(model, tokenizer, prompts, methods):
    for length, group in prompts.items():
        for name in methods:
            parse_row(name).attach(model, length)
            try:
                for prompt in group:
                    yield run_example(model, tokenizer, name, length, prompt, TASK, "prose")
            finally:
                restore(model)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return {
        n: [build(tokenizer, length=n, depth=d, seed=1, filler="prose", answer_room=8, targets=64) for d in (0.0, 1.0)]
        for n in LENGTHS
    }


def test_every_method_runs_at_every_length(model, tokenizer, prompts):
    samples = list(sweep(model, tokenizer, prompts, [STOCK, *METHODS]))
    assert [(s.length, s.method) for s in samples[::2]] == [(n, m) for n in LENGTHS for m in (STOCK, *METHODS)]
    assert all(s.error is None and s.loss > 0 and s.scored >= 63 for s in samples)


def test_stock_is_the_model_without_longspan_and_full_agrees_with_it(model, tokenizer, prompts):
    samples = list(sweep(model, tokenizer, prompts, [STOCK, "full"]))
    for stock, full in zip(samples[0:2] + samples[4:6], samples[2:4] + samples[6:8], strict=True):
        assert stock.loss == pytest.approx(full.loss, rel=1e-4)
        assert stock.prediction == full.prediction
    assert model.config._attn_implementation == "sdpa"


def test_methods_that_ask_are_told_the_length():
    assert parse_row("self-extend").reaching(4096).target_length == 4096
    for name in ("pi", "ntk", "yarn"):
        assert parse_row(name).reaching(4096).angles.target_length == 4096
    assert parse_row("pi").reaching(4096).resolve(512).angles.scale == 8
    assert parse_row("dca").reaching(4096) == METHODS["dca"]()
    assert parse_row(STOCK).reaching(4096) is None


def test_out_of_memory_is_a_sample(model, tokenizer, prompts, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "read", fails)
    samples = list(sweep(model, tokenizer, prompts, ["dca"]))
    assert {s.error for s in samples} == {"out of memory"} and len(samples) == 4
    assert model.config._attn_implementation == "sdpa"


def test_other_errors_are_not_swallowed(model, tokenizer, prompts, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(runner, "read", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        list(sweep(model, tokenizer, prompts, ["dca"]))
    assert model.config._attn_implementation == "sdpa"


def test_out_of_memory_on_the_cpu_is_recognised():
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("size mismatch"))


def test_a_prompt_without_scored_tokens_has_no_loss(model, tokenizer):
    sample = run_example(model, tokenizer, "stock", 200, build(tokenizer, length=200, seed=1), TASK, "noise")
    assert math.isnan(sample.loss) and sample.scored == 0 and sample.error is None and sample.filler == "noise"
    assert math.isnan(cell([sample]).perplexity)


def test_the_task_says_how_long_an_answer_is_how_right_and_when_it_will_do(model, tokenizer):
    example = build(tokenizer, length=200, seed=1)

    def sample(**more):
        task = replace(TASK, score=lambda text, references: len(text) / 1000, until=None, **more)
        return run_example(model, tokenizer, "stock", 200, example, task)

    long, short = sample(new_tokens=30), sample(new_tokens=3)
    assert long.prediction.startswith(short.prediction) and long.correct == len(long.prediction) / 1000 > short.correct
    assert (long.tokens, long.task, long.filler, long.references) == (200, "passkey", "", ())
    stops = replace(TASK, new_tokens=30, until=lambda text: len(text) > 4)
    stopped = run_example(model, tokenizer, "stock", 200, example, stops).prediction
    assert long.prediction.startswith(stopped) and 4 < len(stopped) < len(long.prediction)


def test_a_score_outside_0_to_1_is_a_fault_of_the_task(model, tokenizer):
    wrong = replace(TASK, score=lambda text, references: 50.0)
    with pytest.raises(ValueError, match="passkey: a score lies in 0..1, not 50.0"):
        run_example(model, tokenizer, "stock", 200, build(tokenizer, length=200, seed=1), wrong)


def test_all_of_several_references_are_kept(model, tokenizer):
    example = replace(build(tokenizer, length=200, seed=1), references=("1", "2"))
    assert run_example(model, tokenizer, "stock", 200, example, TASK).references == ("1", "2")
