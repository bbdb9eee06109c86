"""One forward for the next tokens of several caches: logits, errors, and models in which there is none."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.errors import CacheError
from longspan.hf.attach import attached_to
from longspan.hf.joined import JoinedCache
from support import hf_models
from support.hf_models import make, prompts

LENGTHS = (40, 90, 7)
CACHE = longspan.hf.argument.CACHE_ARGUMENT


def ministral3():
    """Its queries are scaled by their positions."""
    scaling = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2.0, "llama_4_scaling_beta": 0.5}
    scaling |= {"original_max_position_embeddings": 32}
    return hf_models.build("ministral3", {**hf_models._COMMON, "sliding_window": None, "rope_parameters": scaling})


def begun(model, lengths=LENGTHS):
    """Caches of prompts of these lengths."""
    caches = []
    for n, length in enumerate(lengths):
        caches.append(longspan.new_cache(model))
        model(input_ids=prompts(1, length, seed=n), **{CACHE: caches[-1]})
    return caches


def step(model, ids, cache):
    return model(input_ids=ids, use_cache=True, **{CACHE: cache}).logits


@torch.inference_mode()
@pytest.mark.parametrize("method", ["dca", "longheads:chunk_length=4,num_chunks=4", "dynamic-ntk"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "phi", "stablelm", "nanochat", "ministral3", "mllama"])
def test_each_row_is_what_it_is_alone(name, method):
    model = make(name) if name in hf_models.FAMILIES else {"ministral3": ministral3, "mllama": hf_models.mllama}[name]()
    longspan.extend(model, method)
    caches, others = begun(model), begun(model)
    joined, ids = JoinedCache(caches), prompts(3, 12, seed=9)
    for n in range(12):
        together = step(model, ids[:, n : n + 1], joined)
        for row, other in enumerate(others):
            own = step(model, ids[row : row + 1, n : n + 1], other)
            torch.testing.assert_close(together[row : row + 1], own, rtol=1e-4, atol=1e-4)
    assert [one.get_seq_length() for one in caches] == [length + 12 for length in LENGTHS]
    last = step(model, ids[:1, :1], caches[0])  # each goes on by itself
    torch.testing.assert_close(last, step(model, ids[:1, :1], others[0]), rtol=1e-4, atol=1e-4)


def test_positions_reach_the_model():
    """Without them the scale of queries would be that of the longest row."""
    model = ministral3()
    longspan.extend(model, "dca")
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    caches = begun(model)
    seen.clear()
    step(model, prompts(3, 1), JoinedCache(caches))
    assert seen[0]["position_ids"].tolist() == [[length] for length in LENGTHS]


@pytest.mark.parametrize(
    ("name", "why"),
    [("gemma2", "layer 0"), ("smollm3", "layer"), ("lfm2", "layer 0"), ("llama", None), ("mllama", None)],
)
def test_models_with_layers_of_their_own_say_that_none_can_be_joined(name, why):
    model = make(name) if name in hf_models.FAMILIES else getattr(hf_models, name)()
    longspan.extend(model, "dca")
    reason = attached_to(model).unjoinable()
    assert reason is None if why is None else why in reason and "attended by the model itself" in reason
    if why is not None:
        with pytest.raises(CacheError, match=f"cache 0 of 2 cannot be joined with the others: {why}"):
            JoinedCache(begun(model, (5, 6)))


def test_what_cannot_be_joined_is_refused():
    model = make("llama")
    longspan.extend(model, "dca")
    caches, ids = begun(model), prompts(3, 1)
    padded, mask, _ = hf_models.left_padded(prompts(1, 9), [2])
    pads, rows = longspan.new_cache(model), longspan.new_cache(model)
    model(input_ids=padded, attention_mask=mask, **{CACHE: pads})
    model(input_ids=prompts(2, 9), **{CACHE: rows})
    for members, why in (
        ([caches[0], caches[0]], "each of them once"),
        ([], "different caches"),
        ([caches[0], longspan.new_cache(model)], "cache 1 of 2 cannot be joined with the others: it is empty"),
        ([pads, caches[0]], "padding"),
        ([caches[0], rows], "not one row"),
    ):
        with pytest.raises(CacheError, match=why):
            JoinedCache(members)
    joined = JoinedCache(caches)
    for tokens, more, why in (
        (prompts(2, 1), {}, "3 joined caches take in one token each, not 1 of 2 rows"),
        (prompts(3, 2), {}, "3 joined caches take in one token each, not 2 of 3 rows"),
        (ids, {"attention_mask": torch.ones(3, 91)}, "leave attention_mask and position_ids out"),
        (ids, {"position_ids": torch.zeros(3, 1).long()}, "leave attention_mask and position_ids out"),
    ):
        with pytest.raises(CacheError, match=why):
            model(input_ids=tokens, **{CACHE: joined}, **more)
    for change in (lambda: joined.crop(-1), joined.reset, lambda: joined.reorder_cache(torch.tensor([0, 1, 2]))):
        with pytest.raises(CacheError, match="change each of them by itself"):
            change()
    assert [one.get_seq_length() for one in caches] == [*LENGTHS] and not any(one.unfinished for one in caches)
    step(model, ids, joined)


def test_caches_of_another_model_or_method_are_refused():
    model, other = make("llama"), make("llama")
    longspan.extend(model, "dca")
    longspan.extend(other, "dca")
    joined = JoinedCache(begun(model))
    with pytest.raises(CacheError, match="filled by another model"):
        step(other, prompts(3, 1), joined)
    longspan.extend(model, "full")
    with pytest.raises(CacheError, match="filled under DCA"):
        step(model, prompts(3, 1), joined)
    longspan.restore(model)
    with pytest.raises(CacheError, match="not extended"):
        step(model, prompts(3, 1), joined)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_forward_that_breaks_off_leaves_each_cache_as_one_of_its_own_does(error):
    model = make("llama")
    longspan.extend(model, "dca")
    caches, ids = begun(model), prompts(3, 1)
    joined = JoinedCache(caches)

    def fail(*args):
        raise error

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        step(model, ids, joined)
    handle.remove()
    for one, length in zip(caches, LENGTHS, strict=True):
        assert one.unfinished and [store.length for store in one.stores] == [length + 1, length]
    with pytest.raises(CacheError, match="a forward was interrupted"):
        step(model, ids, joined)
    for one, length in zip(caches, LENGTHS, strict=True):
        one.crop(length)
    together, others = step(model, ids, joined), begun(model)
    for row, other in enumerate(others):
        own = step(model, ids[row : row + 1], other)
        torch.testing.assert_close(together[row : row + 1], own, rtol=1e-4, atol=1e-4)


def test_one_that_another_forward_fills_is_refused_and_the_others_are_free():
    model = make("llama")
    longspan.extend(model, "dca")
    caches, ids, found = begun(model), prompts(3, 1), []

    def inside(*args):
        with pytest.raises(CacheError, match="another forward is filling this cache"):
            step(model, ids, JoinedCache(caches))
        found.append(step(model, ids[:2], JoinedCache(caches[:2])))

    handle = model.model.layers[1].register_forward_pre_hook(lambda *args: handle.remove() or inside())
    step(model, ids[2:], caches[2])
    assert len(found) == 1 and [one.get_seq_length() for one in caches] == [n + 1 for n in LENGTHS]
    step(model, ids, JoinedCache(caches))
