"""What looks on while several threads run one model: the bar of a prefill, a recording, the queries and keys."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
import torch
from rich.console import Console
from torch import Tensor

import longspan
from longspan.hf import progress_bar as prefill
from longspan.hf.calibration.collect import collect
from longspan.hf.progress_bar import following
from support.hf_models import make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("threads_switch_often")]


def at_once(*jobs: Callable[[], object]) -> None:
    """Run the jobs in threads of their own, without gradients; raise the first of their errors."""
    failed: list[BaseException] = []
    together = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        together.wait()
        try:
            with torch.no_grad():
                job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]


def silent() -> Console:
    return Console(file=io.StringIO(), force_terminal=True)


def test_many_threads_run_a_model_with_a_bar():
    model, ids = make("llama"), prompts(1, 100)
    before = threading.active_count()

    def forwards() -> None:
        for _ in range(40):
            model(ids)

    with longspan.progress(model, console=silent()):
        at_once(*[forwards] * 4)
    assert threading.active_count() == before


def test_many_threads_with_a_bar_each():
    model, ids = make("llama"), prompts(1, 40)
    own, hooks = set(vars(model)), len(model.model._forward_hooks)

    def blocks() -> None:
        for _ in range(10):
            with longspan.progress(model, console=silent()):
                model(ids)
                model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0)

    at_once(*[blocks] * 3)
    assert set(vars(model)) == own and len(model.model._forward_hooks) == hooks


def test_each_thread_is_told_of_its_own_prefill(monkeypatch):
    model, told = make("llama"), []
    monkeypatch.setattr(prefill, "AFTER", 0.0)
    monkeypatch.setattr(prefill, "OFTEN", 0.001)
    held = threading.Event()
    handle = model.model.layers[-1].register_forward_hook(lambda *_: (held.wait(60), None)[1])

    def see(now: prefill.Prefill | None) -> None:
        told.append(None if now is None else now.total)
        if len(told) > 20:
            held.set()

    with following(model, see):
        at_once(*[lambda n=n: model(prompts(1, n)) for n in (20, 33, 47)])
    handle.remove()
    assert None in told and set(told) <= {20, 33, 47, None}
    parts: list[set[int]] = [set()]
    for one in told:
        if one is None:
            parts.append(set())
        else:
            parts[-1].add(one)
    assert all(len(part) <= 1 for part in parts), "one prefill after the other"


def test_a_block_inside_another_leaves_the_outer_one_as_it_was(monkeypatch):
    model, ids = make("llama"), prompts(1, 50)
    totals: list[int] = []
    ends = prefill.Watch.layer_ends

    def layer_ends(self, *args):
        ends(self, *args)
        totals.append(self.now.total)

    monkeypatch.setattr(prefill.Watch, "layer_ends", layer_ends)
    with longspan.progress(model, console=silent()):
        with longspan.progress(model, console=silent()):
            pass
        model.generate(ids, max_new_tokens=1, do_sample=False, prefill_chunk_size=20, eos_token_id=-1, pad_token_id=0)
    assert set(totals) == {50} and "_prefill" not in vars(model)


def test_a_block_may_end_while_another_thread_is_in_a_forward(monkeypatch):
    monkeypatch.setattr(prefill, "AFTER", 0.0)
    model, inside, ended = make("llama"), threading.Event(), threading.Event()
    handle = model.model.layers[0].register_forward_hook(lambda *_: (inside.set(), ended.wait(60), None)[2])

    def open_and_end() -> None:
        block = longspan.progress(model, console=silent())
        with block:
            runs.start()
            inside.wait(60)
        ended.set()

    runs = threading.Thread(target=lambda: at_once(lambda: model(prompts(1, 30))))
    before = threading.active_count()
    open_and_end()
    runs.join(60)
    handle.remove()
    assert threading.active_count() == before


@pytest.mark.parametrize("name", ["longheads", "esa"])
def test_every_forward_has_a_number_of_its_own(name):
    model = make("llama")
    longspan.extend(model, name)
    lengths = (80, 90, 100)

    def forwards(length: int) -> None:
        for _ in range(10):
            model(prompts(1, length))

    with longspan.record(model) as trace:
        at_once(*[lambda n=n: forwards(n) for n in lengths])
    queries: dict[int, set[int]] = {}
    layers: dict[int, list[int]] = {}
    for one in trace:
        queries.setdefault(one.call, set()).add(one.query)
        layers.setdefault(one.call, []).append(one.layer)
    assert sorted(queries) == list(range(30))
    assert sorted(q for found in queries.values() for q in found) == sorted([n - 1 for n in lengths] * 10)
    alone = sorted(layers[0])
    assert len(alone) == len(set(alone)) and all(sorted(found) == alone for found in layers.values())
    assert [one.call for one in trace.at(call=7)] == [7] * len(alone)


def test_a_forward_that_runs_when_a_recording_begins_is_left_out():
    model, inside, begun = make("llama"), threading.Event(), threading.Event()
    longspan.extend(model, "longheads")
    first = True

    def wait(*_: object) -> None:
        nonlocal first
        if first:
            first = False
            inside.set()
            begun.wait(60)

    handle = model.model.layers[0].register_forward_hook(wait)
    runs = threading.Thread(target=lambda: at_once(lambda: model(prompts(1, 90))))
    runs.start()
    inside.wait(60)
    with longspan.record(model) as trace:
        begun.set()
        runs.join(60)
        assert len(trace) == 0
        with torch.no_grad():
            model(prompts(1, 80))
    handle.remove()
    assert {(one.call, one.query) for one in trace} == {(0, 79)}


def test_a_recording_may_end_while_another_thread_runs():
    model, stop, failed = make("llama"), threading.Event(), []
    longspan.extend(model, "longheads")

    def forwards() -> None:
        try:
            with torch.no_grad():
                while not stop.is_set():
                    model(prompts(1, 200))
        except BaseException as error:
            failed.append(error)

    runs = threading.Thread(target=forwards)
    runs.start()
    for _ in range(60):
        with longspan.record(model, queries="all", scores=False):
            pass
    stop.set()
    runs.join(60)
    assert not failed


def test_queries_and_keys_are_those_of_the_thread_that_asked():
    model, seen, running, stop = make("llama"), [], threading.Event(), threading.Event()

    def others() -> None:
        with torch.no_grad():
            running.wait(60)
            model(prompts(1, 23))
            stop.set()

    def sink(layer: object, q: Tensor, k: Tensor) -> None:
        seen.append(q.shape[2])
        if not running.is_set():
            running.set()
            assert stop.wait(60)

    thread = threading.Thread(target=others)
    thread.start()
    collect(model, [prompts(1, 40)[0]], sink)
    thread.join(60)
    assert set(seen) == {40}
