"""A longspan cache in a model that cannot fill it, and caches that a forward left half filled."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache

import longspan
from longspan.errors import CacheError
from longspan.hf.argument import CACHE_ARGUMENT
from support.hf_models import left_padded, make, prompts

pytestmark = [pytest.mark.hostile, pytest.mark.usefixtures("no_gradients")]


def filled(method="dca", tokens=80, **options):
    model = make("llama")
    longspan.extend(model, method, **options)
    return model, model(prompts(1, tokens)).past_key_values


def after_restore():
    model, cache = filled()
    longspan.restore(model)
    return model, cache


def after_the_block():
    model = make("llama")
    with longspan.extended(model, "dca"):
        cache = model(prompts(1, 80)).past_key_values
    return model, cache


def of_another():
    return make("llama"), filled()[1]


def unfilled():
    model = make("llama")
    longspan.extend(model, "dca")
    return make("llama"), longspan.new_cache(model)


def of_another_family():
    model = make("gemma2")
    longspan.extend(model, "dca")
    return make("gemma2"), longspan.new_cache(model)


@pytest.mark.parametrize("make_both", [after_restore, after_the_block, of_another, unfilled, of_another_family])
def test_a_model_that_is_not_extended_cannot_use_the_cache(make_both):
    model, cache = make_both()
    with pytest.raises(CacheError, match="not extended"):
        model(prompts(1, 1), past_key_values=cache)
    with pytest.raises(CacheError, match="not extended"):
        model.generate(prompts(1, 90), past_key_values=cache, max_new_tokens=3)
    assert torch.equal(model(prompts()).logits, model(prompts()).logits)


def test_a_layers_keys_are_not_taken_outside_of_a_forward():
    _, cache = filled()
    with pytest.raises(CacheError, match="not extended"):
        cache.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16), 0)


def test_another_cache_for_one_layer_is_refused():
    model, _ = filled()
    model.model.layers[1].register_forward_pre_hook(
        lambda m, args, kwargs: (args, {**kwargs, CACHE_ARGUMENT: DynamicCache()}), with_kwargs=True
    )
    with pytest.raises(longspan.LongspanError, match="a different cache than the model"):
        model(prompts())


@pytest.mark.parametrize("method", ["dca", "longheads", "esa"])
@pytest.mark.parametrize("first", [True, False])
def test_a_forward_that_broke_off_is_found_and_can_be_taken_back(method, first):
    model = make("llama")
    longspan.extend(model, method)
    ids = prompts(1, 90)
    cache = longspan.new_cache(model)
    if not first:
        model(ids[:, :80], past_key_values=cache)
    broken = model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids[:, cache.stores[1].length :], past_key_values=cache)
    broken.remove()
    way = r"cache\.reset" if first else r"cache\.crop\(80\)"
    with pytest.raises(CacheError, match=f"0 to 90 tokens.*{way}"):
        model(ids[:, 80:], past_key_values=cache)
    if first:
        cache.reset()
        model(ids[:, :80], past_key_values=cache)
    else:
        cache.crop(80)
    again = model(ids[:, 80:], past_key_values=cache).logits
    clean = longspan.new_cache(model)
    model(ids[:, :80], past_key_values=clean)
    assert torch.allclose(again, model(ids[:, 80:], past_key_values=clean).logits, atol=1e-5)


@pytest.mark.parametrize("method", longspan.METHODS)
def test_copies_of_a_cache_go_on_by_themselves(method):
    model = make("llama")
    longspan.extend(model, method)
    ids, mask, _ = left_padded(prompts(2, 100), [7, 0])
    cache = longspan.new_cache(model)
    model(ids[:, :90], attention_mask=mask[:, :90], past_key_values=cache)
    twin = copy.deepcopy(cache)
    ours = model(ids[:, 90:], attention_mask=mask, past_key_values=cache).logits
    assert twin.get_seq_length() == 90
    assert torch.equal(model(ids[:, 90:], attention_mask=mask, past_key_values=twin).logits, ours)


def test_a_cache_in_files_is_copied_too(tmp_path):
    model, cache = filled("longheads", kv_tier="disk", kv_dir=tmp_path)
    twin = copy.deepcopy(cache)
    ours = [model(prompts(1, 1), past_key_values=x).logits for x in (cache, twin, cache)]
    assert torch.equal(ours[0], ours[1]) and not torch.equal(ours[0], ours[2])


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, lambda c: torch.save(c, "/dev/null")])
def test_a_cache_is_not_pickled(take):
    _, cache = filled()
    with pytest.raises(CacheError, match="cannot be pickled"):
        take(cache)


@pytest.mark.parametrize("length", [2.5, "3", None, torch.tensor(-2.5)])
def test_a_length_that_is_no_whole_number_drops_nothing(length):
    _, cache = filled()
    before = cache.get_seq_length()
    with pytest.raises(TypeError):
        cache.crop(length)
    assert cache.get_seq_length() == before > 3
    cache.crop(torch.tensor(-2))
    assert cache.get_seq_length() == before - 2
