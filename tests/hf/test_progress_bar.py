"""How far a prefill is: layers and pieces counted, nothing shown of short ones, nothing left behind."""

from __future__ import annotations

import io
import threading

import pytest
import torch
from rich.console import Console
from torch import nn

import longspan
from longspan.errors import LongspanError
from longspan.hf import progress_bar as prefill
from longspan.hf.progress_bar import Prefill, Watch, following
from support.hf_models import _COMMON, FAMILIES, build, make

LAYERS = 3


@pytest.fixture
def model():
    return build("llama", {**_COMMON, "num_hidden_layers": LAYERS})


@pytest.fixture
def seen(model, monkeypatch):
    """What is told of every forward, looked at after each layer instead of after some time."""
    told: list[Prefill | None] = []
    ends = Watch.layer_ends

    def layer_ends(self, *args):
        ends(self, *args)
        if self.tokens > 1:
            told.append(self.now)

    finish = Watch.finish

    def finishes(self):
        if self in self.block.running:
            told.append(None)
        finish(self)

    # Counts what threads report, and passes it on.
    monkeypatch.setattr(Watch, "layer_ends", layer_ends)
    monkeypatch.setattr(Watch, "finish", finishes)
    with following(model, lambda now: None):
        yield told


def ids(tokens, rows=1):
    return torch.randint(3, 60, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def places(told):
    return [None if now is None else (now.read, now.total, now.layer) for now in told]


def test_a_forward_is_as_far_as_its_layers(model, seen):
    with torch.inference_mode():
        model(ids(30, rows=2))
    assert places(seen) == [(10, 30, 2), (20, 30, 3), (30, 30, 3), None]


def test_it_does_not_matter_what_is_attached(model, seen):
    with torch.inference_mode():
        longspan.extend(model, "dca")
        seen.clear()  # what a model is probed with is a few tokens
        model(ids(30))
        longspan.restore(model)
        model(ids(30))
    assert places(seen)[:4] == places(seen)[4:] == [(10, 30, 2), (20, 30, 3), (30, 30, 3), None]


def test_pieces_of_a_prompt_are_one_prefill_and_decoding_is_none(model, seen):
    longspan.extend(model, "dca")
    seen.clear()
    model.generate(ids(50), max_new_tokens=4, do_sample=False, prefill_chunk_size=20, eos_token_id=-1, pad_token_id=0)
    reads = [now.read for now in seen if now is not None]
    assert reads == pytest.approx([20 * n / 3 for n in range(1, 7)] + [40 + 10 * n / 3 for n in range(1, 4)])
    assert {now.total for now in seen if now is not None} == {50} and seen.count(None) == 1 and seen[-1] is None


def test_a_cache_that_is_there_already_is_not_read_again(model, seen):
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    with torch.inference_mode():
        model(ids(40), past_key_values=cache)
    seen.clear()
    model.generate(ids(60), past_key_values=cache, max_new_tokens=2, do_sample=False, eos_token_id=-1, pad_token_id=0)
    assert {now.total for now in seen if now is not None} == {20}


def test_an_error_in_a_layer_ends_it(model, seen):
    class Broken(Exception):
        pass

    def breaks(*_):
        raise Broken

    handle = model.model.layers[1].mlp.register_forward_hook(breaks)
    with pytest.raises(Broken), torch.inference_mode():
        model(ids(30))
    handle.remove()
    assert places(seen) == [(10, 30, 2), None]
    with torch.inference_mode():
        model(ids(30))
    assert places(seen)[2:] == [(10, 30, 2), (20, 30, 3), (30, 30, 3), None]


def test_the_rate_and_the_time_left():
    now = Prefill(total=3000, read=1000.0, layer=2, layers=3, seconds=4.0, waited=1.0)
    assert now.rate == 250 and now.left == 7
    assert str(now) == "3,000 tokens, layer 2 of 3, 250 tokens/s, 0:07 left"
    assert str(Prefill(10**6, 1000.0, 1, 3, 10.0, 0.0)).endswith("100 tokens/s, 2:46:30 left")
    begun = Prefill(3000, 0.0, 1, 3, 0.0, 2.5)
    assert begun.left is None and str(begun) == "3,000 tokens, layer 1 of 3"
    assert Prefill(3000, 1000.0, 2, 3, 4.0, 60.0).left == 0


def test_the_bar_is_on_the_console_and_goes_away(model, monkeypatch):
    # No wait: these prefills take less than the two seconds.
    monkeypatch.setattr(prefill, "AFTER", 0.0)
    shown = threading.Event()
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: (shown.wait(60), None)[1])
    tell = prefill.Progress.update
    # Passes on, and tells the test that the bar is shown.
    monkeypatch.setattr(prefill.Progress, "update", lambda self, *a, **k: (tell(self, *a, **k), shown.set())[0])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with longspan.progress(model, console=console), torch.inference_mode():
        model(ids(30))
    handle.remove()
    assert shown.is_set() and "30 tokens, layer" in console.file.getvalue()
    assert console._live_stack == [] if hasattr(console, "_live_stack") else console._live is None


def test_what_is_short_is_not_shown(model):
    console = Console(file=io.StringIO(), force_terminal=True)
    with longspan.progress(model, console=console), torch.inference_mode():
        model(ids(30))
        model.generate(ids(9), max_new_tokens=2, do_sample=False)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("error", [OSError("No space left on device"), SystemExit(1)], ids=["full", "closed pipe"])
def test_a_console_that_is_gone_ends_no_forward(model, monkeypatch, error):
    # A forward of this size is over before a bar would be shown.
    monkeypatch.setattr(prefill, "AFTER", 0.0)
    told = threading.Event()
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: (told.wait(60), None)[1])

    def see(now):
        told.set()
        if now is None:
            raise error

    with following(model, see), torch.inference_mode():
        model(ids(30))
        told.clear()
        model(ids(30))  # and the next one is told of
    handle.remove()
    assert told.is_set()


def test_nothing_stays_behind(model):
    hooks = lambda: [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]  # noqa: E731
    before, threads, own = hooks(), threading.active_count(), set(vars(model))
    with pytest.raises(ZeroDivisionError), longspan.progress(model):
        assert hooks() != before
        model(ids(20))
        1 / 0  # noqa: B018
    assert hooks() == before and threading.active_count() == threads and set(vars(model)) == own


def test_the_answer_is_the_same(model):
    longspan.extend(model, "longheads")
    with torch.inference_mode():
        alone = model(ids(100)).logits
        with longspan.progress(model):
            assert torch.equal(model(ids(100)).logits, alone)


def test_a_model_without_a_list_of_layers_is_refused(model):
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(LongspanError, match="none of its lists of modules has its 3 layers"), longspan.progress(model):
        pass


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_layers_to_count(name):
    model = make(name)
    _, layers = prefill.decoder_and_layers(model)
    assert len(layers) == model.config.get_text_config().num_hidden_layers
    told = []
    with following(model, told.append), torch.inference_mode():
        handles = [layer.register_forward_hook(lambda *_: told.append("layer")) for layer in layers]
        model(ids(12))
        for handle in handles:
            handle.remove()
    assert told == ["layer"] * len(layers)
