"""Models and caches that two threads get hold of at once: one of them is told, and nothing is mixed up."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager

import pytest
import torch

import longspan
from longspan.errors import CacheError, LongspanError
from support.hf_models import make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


@contextmanager
def held_inside(model, call):
    """Another thread is inside of a forward of the model while the block runs; yields what it raised, once it did."""
    inside, go, errors, outs = threading.Event(), threading.Event(), [], []
    thread = threading.Thread(target=lambda: run())

    def wait(*_):
        if threading.current_thread() is thread and not inside.is_set():
            inside.set()
            assert go.wait(60)

    def run():
        try:
            with torch.no_grad():
                outs.append(call())
        except Exception as error:
            errors.append(error)

    handle = model.model.layers[0].mlp.register_forward_pre_hook(wait)
    thread.start()
    assert inside.wait(60)
    try:
        yield outs, errors
    finally:
        go.set()
        thread.join()
        handle.remove()


def test_one_cache_in_two_threads_is_refused_and_stays_whole():
    model = make("llama")
    longspan.extend(model, "dca")
    ids = prompts(1, 90)
    cache = longspan.new_cache(model)
    with held_inside(model, lambda: model(ids[:, :80], past_key_values=cache).logits) as (outs, errors):
        for _ in range(2):
            with pytest.raises(CacheError, match="another forward is filling this cache.*its own"):
                model(ids[:, :80], past_key_values=cache)
        model(ids[:, :80])
    assert not errors
    assert torch.allclose(outs[0], model(ids[:, :80]).logits, atol=1e-5)
    model(ids[:, 80:], past_key_values=cache)


def test_a_forward_inside_of_another_leaves_that_one_running():
    model = make("llama")
    longspan.extend(model, "dca")
    ids, inner = prompts(1, 80), []
    plain = model(ids).logits

    def again(module, args):
        if not inner:
            inner.append(None)
            inner.append(model(ids).logits)

    model.model.layers[0].mlp.register_forward_pre_hook(again)
    assert torch.equal(model(ids).logits, plain) and torch.equal(inner[1], plain)


@pytest.mark.parametrize("broken", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_forward_holds_neither_cache_nor_model(broken):
    model = make("llama")
    longspan.extend(model, "dca")
    ids, cache = prompts(1, 80), longspan.new_cache(model)

    def fail(*_):
        raise broken

    handle = model.model.layers[0].mlp.register_forward_pre_hook(fail)
    with pytest.raises(broken):
        model(ids, past_key_values=cache)
    handle.remove()
    cache.reset()
    assert torch.equal(model(ids, past_key_values=cache).logits, model(ids).logits)
    at_once = []
    thread = threading.Thread(target=lambda: at_once.append(longspan.restore(model)))
    thread.start()
    thread.join()
    assert at_once == [None] and model.config._attn_implementation == "sdpa"


CHANGES = {
    "extend": lambda m: longspan.extend(m, "streaming-llm"),
    "restore": longspan.restore,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["forward", "generate"])
def test_a_model_that_another_thread_runs_is_not_changed(change, how):
    model, ids = make("llama"), prompts(1, 80)
    longspan.extend(model, "dca")
    call = {
        "forward": lambda: model(ids).logits,
        "generate": lambda: model.generate(ids, max_new_tokens=5, do_sample=False),
    }[how]
    plain = call()
    with (
        held_inside(model, call) as (outs, errors),
        pytest.raises(LongspanError, match="another thread is running the model"),
    ):
        CHANGES[change](model)
    assert not errors and torch.equal(outs[0], plain) and torch.equal(call(), plain)
    CHANGES[change](model)


@pytest.mark.parametrize("change", [longspan.extend, longspan.inspect])
def test_a_stock_model_that_another_thread_runs_is_not_probed(change):
    model, ids = make("llama"), prompts(1, 80)
    plain = model(ids).logits
    with (
        held_inside(model, lambda: model(ids).logits) as (outs, errors),
        pytest.raises(LongspanError, match="another thread is running the model"),
    ):
        change(model, "dca")
    assert not errors and torch.equal(outs[0], plain)
    assert not any(module._forward_pre_hooks for module in model.modules())
    change(model, "dca")


def looked_at(forward):
    """Run a last module's ``forward(x, wait)`` in a thread; ``wait()`` returns when this thread has looked into it."""
    model, inside, go = make("llama"), threading.Event(), threading.Event()

    def wait():
        inside.set()
        assert go.wait(60)

    class Own(torch.nn.Module):
        def forward(self, x):
            return forward(self, x, wait)

    longspan.extend(model, "dca")
    model.model.norm = torch.nn.Sequential(model.model.norm, Own())
    thread = threading.Thread(target=lambda: model(prompts(1, 80)))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(LongspanError, match="another thread is running the model"):
        longspan.restore(model)
    go.set()
    thread.join()


def test_a_look_at_a_thread_keeps_none_of_its_tensors():
    """The next look would free them while it reads the frame: a segmentation fault where the thread leaves it."""
    refs = []

    def forward(self, x, wait):
        own = x + 1
        refs.append(weakref.ref(own))
        wait()
        del own
        refs.append(refs[0]())
        return x

    looked_at(forward)
    assert len(refs) == 2 and refs[1] is None


def test_a_look_at_a_thread_leaves_what_it_has_from_locals():
    names = []

    def forward(self, x, wait):
        mine = locals()
        wait()
        names.extend(mine)
        return x

    looked_at(forward)
    assert {"self", "x"} <= set(names)


def test_a_forward_that_comes_in_while_the_model_is_extended_is_turned_away():
    model, ids = make("llama"), prompts(1, 80)
    found, calls = [], []

    def foreign(module, args):
        if threading.current_thread() is not threading.main_thread():
            return

        def run():
            try:
                with torch.no_grad():
                    found.append(model(ids))
            except LongspanError as error:
                found.append(error)

        calls.append(None)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    handle = model.model.layers[0].mlp.register_forward_pre_hook(foreign)
    longspan.extend(model, "dca")
    handle.remove()
    assert len(calls) >= 5 and len(found) == len(calls)
    assert all("another thread is running longspan.extend" in str(x) for x in found)
    assert torch.equal(model(ids).logits, model(ids).logits)
