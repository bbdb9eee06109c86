"""A recorded decoding step, replayed, gives the tokens of the model that is called.

Without a GPU ``tape`` records it, and what is called runs on other kernels, which makes two checks of one.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import longspan
from longspan.attend import tables
from longspan.attend.steps import token_cpu
from longspan.hf import graphs as module
from longspan.kernels.gpu import tiles
from longspan.memory import mapped as memory
from longspan.memory.buffer import SPARE
from support.hf_models import _COMMON, FAMILIES, WINDOW, build, greedy_steps, left_padded, make, prompts

pytest.importorskip("triton")
from support import tape

INTERPRETED = tiles.interpreting()
DEVICE = "cpu" if INTERPRETED else "cuda"
BANDED = ["full", "dca-scaled", "rerope", "self-extend", "string", "streaming-llm", "lm-infinite", "yarn"]


def method(name):
    own = {"dca-scaled": longspan.DCA(length_scale=0.1), "yarn": longspan.YaRN(factor=4)}
    return own.get(name) or longspan.METHODS[name]()


@pytest.fixture
def recorded(monkeypatch):
    """Counts recordings."""
    made, how = [], tape.record if INTERPRETED else module.record

    def record(run, device):
        made.append(1)  # and not what runs, which holds a cache
        return how(run, device)

    # Counts recordings; without a GPU a tape stands in for the graph.
    monkeypatch.setattr(module, "record", record)
    if INTERPRETED:
        # The interpreter runs on the CPU, where there are no graphs.
        monkeypatch.setattr(module, "why_no_graph", lambda device: None)
    return made


def model_of(family="llama"):
    return make(family).to(DEVICE)


def ids_of(*sizes, **options):
    return prompts(*sizes, **options).to(DEVICE)


def assert_replayed(model, ids, recorded, mask=None):
    plain, _ = greedy_steps(model, ids, 4, mask)
    with longspan.graphed(model):
        found, _ = greedy_steps(model, ids, 4, mask)
    assert len(recorded) == 1
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BANDED)
@pytest.mark.usefixtures("poisoned")
def test_replays_equal_calls(name, recorded):
    """From inside the window to beyond it."""
    model, ids = model_of(), ids_of(1, WINDOW - 3)
    longspan.extend(model, method(name))
    plain, cache = greedy_steps(model, ids, 6)
    with longspan.graphed(model):
        found, own = greedy_steps(model, ids, 6)
    assert len(recorded) == 1
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    assert own.get_seq_length() == cache.get_seq_length()
    for a, b in zip(own.stores, cache.stores, strict=True):
        torch.testing.assert_close(a.values, b.values, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a.keys, b.keys, rtol=1e-4, atol=1e-4)


def assert_same_caches(own, cache):
    for a, b in zip(own.stores, cache.stores, strict=True):
        for x, y in zip(a.state(), b.state(), strict=True):  # what an index keeps as well
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


FEW = {"chunk_length": 8, "num_chunks": 4}
CHOOSING = {
    "longheads": longspan.LongHeads(**FEW),
    "longheads-mean-head": longspan.LongHeads(**FEW, score="mean", share="head", remap="far"),
    "longheads-submeans": longspan.LongHeads(**FEW, score="submeans", first_chunk=False),
    "longheads-bounds-layer": longspan.LongHeads(**FEW, score="bounds", share="layer"),
    "longheads-blocks": longspan.LongHeads(chunk_length=2, score="bounds"),
    "esa": longspan.ESA(top_k=6),
    "esa-group-rotated": longspan.ESA(top_k=6, share="group", score_at=7, proximity=0),
    "esa-calibrated": longspan.ESA(top_k=6),
}


# Under the interpreter each takes ten seconds or more; of either method the short run has what needs most.
SHORT = "longheads", "longheads-bounds-layer", "esa-calibrated"
RECORDED = [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in CHOOSING]
ONE_SHORT = [pytest.param("longheads", marks=pytest.mark.long), "esa-calibrated"]


def extended(model, name):
    """The model, extended by one of ``CHOOSING``."""
    random = [torch.randint(3, 128, (WINDOW,), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    calibration = longspan.calibrate(model, random, tokens=200, progress=False) if "calibrated" in name else None
    longspan.extend(model, CHOOSING[name], calibration=calibration)
    return model


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.usefixtures("poisoned")
def test_choices_are_recorded(name, recorded, monkeypatch):
    """From inside the window to beyond it, over the ends of two chunks, at which the model is called."""
    for part in (tables, token_cpu):
        # No tables of tokens both inside and beyond, as in large windows.
        monkeypatch.setattr(part, "AHEAD", WINDOW // 4)
    model, ids = extended(model_of(), name), ids_of(1, WINDOW - 2)
    plain, cache = greedy_steps(model, ids, 12)
    with longspan.graphed(model):
        found, own = greedy_steps(model, ids, 12)
    assert len(recorded) == 2, "one that chooses nothing, and one that does"
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    assert_same_caches(own, cache)


@pytest.mark.parametrize("name", ONE_SHORT)
def test_choices_of_padded_rows(name, recorded):
    """Rows whose chunks fill, and whose choosing begins, at tokens of their own."""
    model = extended(model_of(), name)
    ids, mask, _ = left_padded(ids_of(2, WINDOW + 5), [0, 7])
    plain, _ = greedy_steps(model, ids, 6, mask)
    with longspan.graphed(model):
        found, _ = greedy_steps(model, ids, 6, mask)
    assert len(recorded) == 2
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ONE_SHORT)
def test_choices_after_a_crop_and_a_prompt(name, recorded):
    """What goes back before the queries that choose is recorded again; a prompt moves nothing."""
    model, ids = extended(model_of(), name), ids_of(1, WINDOW)
    found = []
    for inside in (False, True):
        with longspan.graphed(model) if inside else torch.no_grad():
            first, cache = greedy_steps(model, ids, 2)
            cache.crop(WINDOW - 3)
            back, _ = greedy_steps(model, ids_of(1, 1, seed=2), 4, cache=cache)  # the third is called
            more, _ = greedy_steps(model, ids_of(1, 6, seed=3), 2, cache=cache)
        found.append(torch.cat((first, back, more), dim=1))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert len(recorded) == 3


@pytest.mark.parametrize("family", ["phi", "glm4", "gpt_neox", "hunyuan_v1_dense"])
def test_families(family, recorded):
    """Partial rotations, interleaved ones, norms before and after the rotation."""
    model, ids = model_of(family), ids_of(1, WINDOW + 9)
    longspan.extend(model, "dca")
    assert_replayed(model, ids, recorded)


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2"])
def test_sinks_and_softcaps(family, recorded):
    kind, own = FAMILIES[family]
    model = build(kind, {**_COMMON, **own, "layer_types": ["full_attention"] * 2}, "eager").to(DEVICE)
    ids = ids_of(1, WINDOW + 9)
    longspan.extend(model, "dca")
    assert_replayed(model, ids, recorded)


@pytest.mark.parametrize("pads", [[5, 5], [0, 7, 7]])
def test_padded_rows(pads, recorded):
    model = model_of()
    ids, mask, _ = left_padded(ids_of(len(pads), WINDOW + 2), pads)
    longspan.extend(model, longspan.DCA(length_scale=0.1))
    assert_replayed(model, ids, recorded, mask)


@pytest.mark.parametrize("name", ["dca", "longheads", "esa-calibrated"])
def test_the_cache_grows_and_is_recorded_again(name, recorded):
    model, ids = model_of(), ids_of(1, WINDOW)
    if name in CHOOSING:
        extended(model, name)
    else:
        longspan.extend(model, name)
    _, cache = greedy_steps(model, ids, 1)
    with longspan.graphed(model, room=1), torch.no_grad():
        more, _ = greedy_steps(model, ids_of(1, SPARE - 2, seed=1), 5, cache=cache)  # room for SPARE tokens is left
    assert len(recorded) == 2
    _, cache = greedy_steps(model, ids, 1)
    plain, _ = greedy_steps(model, ids_of(1, SPARE - 2, seed=1), 5, cache=cache)
    torch.testing.assert_close(more, plain, rtol=1e-4, atol=1e-4)


def test_generate_and_what_runs_as_before(recorded):
    model, ids = model_of(), ids_of(2, WINDOW + 5)
    longspan.extend(model, "rerope")
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    plain = model.generate(ids, **options)
    assert len(recorded) == 0
    with longspan.graphed(model):
        assert torch.equal(model.generate(ids, **options), plain)
        assert len(recorded) == 1
        assert torch.equal(model.generate(ids, **options), plain), "another cache"
        assert len(recorded) == 2
        cache = longspan.new_cache(model)
        with torch.no_grad():
            model(ids, past_key_values=cache)
            some = model(ids[:, :1], past_key_values=cache, output_hidden_states=True)
            told = model(input_ids=ids[:, :1], past_key_values=cache, labels=ids[:, :1])
            bare = model(input_ids=ids[:, :1], past_key_values=cache, return_dict=False)
        assert some.hidden_states is not None and told.loss is not None and isinstance(bare, tuple)
        assert len(recorded) == 2
        with pytest.warns(UserWarning, match="gradients are on"):
            assert model(ids[:, :1], past_key_values=cache).logits.requires_grad
        model.config.output_hidden_states = True
        with torch.no_grad():
            assert model(input_ids=ids[:, :1], past_key_values=cache).hidden_states
        model.config.output_hidden_states = False
        assert len(recorded) == 2
    assert "forward" not in vars(model)
    assert torch.equal(model.generate(ids, **options), plain)
    assert len(recorded) == 2


def test_a_crop_and_a_prompt_between_steps(recorded):
    """What is dropped or appended between steps moves nothing, so the recording holds."""
    model, ids = model_of(), ids_of(1, WINDOW + 5)
    longspan.extend(model, "dca")
    found = []
    for inside in (False, True):
        with longspan.graphed(model) if inside else torch.no_grad():
            _, cache = greedy_steps(model, ids, 5)
            cache.crop(-3)
            more, _ = greedy_steps(model, ids_of(1, 4, seed=3), 5, cache=cache)
        found.append(more)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert len(recorded) == 1


def test_a_cache_that_was_reset_is_recorded_again(recorded, monkeypatch):
    """A shorter text gets the memory of the last one, as an allocator may give it, and lies otherwise in it."""
    given, taken, init = [], [], memory.Memory.__init__

    def again(self, kind, capacity, *, host):
        init(self, kind, capacity, host=host)
        with torch.inference_mode(False):
            if len(given) == len(taken):
                given.append(self.tensor.flatten())
            self.tensor = given[len(taken)][: self.tensor.numel()].view(self.tensor.shape)
        taken.append(capacity)

    model, ids = model_of(), ids_of(1, WINDOW // 2, seed=3)
    longspan.extend(model, "dca")
    plain, _ = greedy_steps(model, ids, 2)
    # Whether torch's allocator does it depends on what else there is.
    monkeypatch.setattr(memory.Memory, "__init__", again)
    with longspan.graphed(model, room=1):
        _, cache = greedy_steps(model, ids_of(1, WINDOW), 2)
        cache.reset()
        before = taken.copy()
        taken.clear()
        found, _ = greedy_steps(model, ids, 2, cache=cache)
    assert len(taken) == len(before) and max(taken) < min(before)
    assert len(recorded) == 2
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)


def test_a_moved_cache_is_refused(recorded):
    model, ids = model_of(), ids_of(1, WINDOW)
    longspan.extend(model, "dca")
    with longspan.graphed(model), pytest.raises(longspan.CacheError, match="beam search"):
        model.generate(ids, max_new_tokens=6, num_beams=3, do_sample=False, eos_token_id=None)


def test_padding_that_changes_is_refused(recorded):
    model = model_of()
    ids, mask, _ = left_padded(ids_of(1, WINDOW), [4])
    longspan.extend(model, "dca")
    with longspan.graphed(model):
        _, cache = greedy_steps(model, ids, 3, mask)
        with pytest.raises(longspan.CacheError, match="padding"), torch.no_grad():
            model(input_ids=ids[:, -1:], past_key_values=cache)


def test_two_caches_in_turn_have_a_recording_each(recorded):
    model, made = model_of(), []
    longspan.extend(model, "dca")
    with longspan.graphed(model), torch.inference_mode():
        caches = [greedy_steps(model, ids_of(1, n, seed=n), 1)[1] for n in (WINDOW, WINDOW + 7)]
        for n in range(6):
            token = torch.full((1, 1), 5 + n, device=DEVICE)
            made.append(model(token, past_key_values=caches[n % 2]).logits)  # named by their place, too
        assert len(recorded) == 2
        gone = weakref.ref(caches.pop())
        gc.collect()
        assert gone() is None, "a recording keeps no cache"
    with torch.no_grad():
        cache = greedy_steps(model, ids_of(1, WINDOW, seed=WINDOW), 1)[1]
        for n in (0, 2, 4):
            plain = model(torch.full((1, 1), 5 + n, device=DEVICE), past_key_values=cache).logits
            torch.testing.assert_close(made[n], plain, rtol=1e-4, atol=1e-4)


def test_what_changes_the_model_runs_as_before(recorded):
    model, ids = model_of(), ids_of(1, WINDOW)
    model.forward = own = model.forward
    longspan.extend(model, "dca")
    with longspan.graphed(model):
        with pytest.raises(longspan.LongspanError, match="already"), longspan.graphed(model):
            pass
        _, cache = greedy_steps(model, ids, 2)
        assert len(recorded) == 1
        longspan.extend(model, "rerope")
        refused = pytest.raises(longspan.CacheError, match="now runs ReRoPE")
        with refused, pytest.warns(UserWarning, match="extended again"), torch.no_grad():
            model(input_ids=ids[:, :1], past_key_values=cache)
    assert model.forward is own


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        ("llama", {"method": "infllm"}, "infllm selects keys"),
        ("llama", {"method": longspan.LMInfinite(middle_top_k=2, from_layer=1)}, "lm-infinite selects keys"),
        ("llama", {"method": longspan.LongHeads(score="token_max")}, "longheads with .* use another score"),
        ("llama", {"method": longspan.ESA(remap="slots")}, "positions .* esa .* use another remap"),
        ("llama", {"method": longspan.LongHeads(remap="dca")}, "positions .* longheads .* use another remap"),
        ("llama", {"method": "dynamic-ntk"}, "follow the length"),
        ("gemma2", {"method": "dca"}, "stayed stock"),
        ("llama", {"method": "longheads", "kv_tier": "host"}, "kv_tier='host'"),
        ("llama", {"method": "dca", "impl": "torch"}, "impl='torch'"),
    ],
)
def test_what_cannot_be_recorded_says_so(family, options, match, recorded):
    model = model_of(family)
    longspan.extend(model, **options)
    with pytest.raises(longspan.LongspanError, match=match), longspan.graphed(model):
        raise AssertionError("not reached")
    assert "forward" not in vars(model)


def test_a_device_without_graphs_is_named():
    model = make("llama")
    with pytest.raises(longspan.LongspanError, match="not extended"), longspan.graphed(model):
        pass
    longspan.extend(model, "dca")
    cpu = pytest.raises(longspan.LongspanError, match="GPU, and the model is on cpu; call .* without longspan.graphed")
    with cpu, longspan.graphed(model):
        raise AssertionError("not reached")
    assert "forward" not in vars(model)
    with pytest.raises(ValueError, match="room"), longspan.graphed(model, room=0):
        pass


@pytest.mark.skipif(not INTERPRETED, reason="the tape is for kernels that are interpreted")
def test_a_tape_shows_what_a_graph_would():
    """The recorder itself: numbers given then stay, memory is read anew, and waiting is refused."""
    x = torch.zeros(3)
    steps = [1]
    out, replay = tape.record(lambda: (x + steps[0]).mul_(2))
    steps[0] = 5
    x += 1
    replay()
    assert out.tolist() == [4.0] * 3
    with pytest.raises(RuntimeError, match="waits"):
        tape.record(lambda: x[0].item())
