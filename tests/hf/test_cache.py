"""The cache of a model whose layers are partly attached and partly stock: broken off, cropped, and never half done."""

from __future__ import annotations

import copy

import pytest
import torch

import longspan
from support.hf_models import gemma3n, left_padded, lfm2, make, prompts, qwen3_next

SLIDING = ["gemma2", "gemma3_text", "gpt_oss"]  # layer 0 slides over 16 tokens, layer 1 is attached
MIXED = [*SLIDING, "smollm3"]  # whose layer 1 has no positions and keeps every key


class BrokenOff(Exception):
    pass


def filled(name, tokens=100, method="dca"):
    model = make(name)
    longspan.extend(model, method)
    cache = longspan.new_cache(model)
    model(prompts(1, tokens), past_key_values=cache)
    return model, cache


def lengths(cache):
    return [layer.get_seq_length() for layer in cache.layers]


def broken_off(model, cache, ids, error=BrokenOff):
    """A forward that ends in an error once the first layer has taken in its keys."""

    def stop(*args):
        raise error

    with model.model.layers[1].register_forward_pre_hook(stop), pytest.raises(error):
        model(ids, past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("name", MIXED)
def test_a_forward_that_broke_off_is_seen_in_stock_layers_too(name):
    model, cache = filled(name)
    more = prompts(1, 20, seed=2)
    broken_off(model, cache, more)
    assert lengths(cache) == [120, 100]
    with pytest.raises(longspan.CacheError, match="hold 100 to 120 tokens") as error:
        model(more, past_key_values=cache)
    # What the message says is what helps.
    if name in SLIDING:
        assert "cache.reset()" in str(error.value)
        cache.reset()
        model(prompts(1, 100), past_key_values=cache)
    else:
        assert "cache.crop(100)" in str(error.value)
        cache.crop(100)
    assert lengths(cache) == [100, 100]
    again, whole = filled(name)
    assert torch.equal(model(more, past_key_values=cache).logits, again(more, past_key_values=whole).logits)


WRONG = {
    "a short mask": ({"attention_mask": torch.ones(2, 1)}, "pass a mask of all tokens"),
    "a mask of one row": ({"attention_mask": torch.ones(1, 101)}, "pass a row for each"),
    "no mask": ({}, "no attention_mask was passed"),
    "one row": ({"input_ids": prompts(1, 1)}, "holds 2 rows and the input has 1"),
    "other positions": ({"attention_mask": "right", "position_ids": torch.tensor([[5]])}, "do not continue"),
}


@torch.no_grad()
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("make_it", [*MIXED, qwen3_next])
def test_what_does_not_fit_the_cache_is_refused_before_a_stock_layer_takes_it_in(make_it, wrong):
    model = make(make_it) if isinstance(make_it, str) else make_it()
    longspan.extend(model, "dca")
    ids, mask, _ = left_padded(prompts(2, 101), [7, 0])
    cache, untouched = longspan.new_cache(model), longspan.new_cache(model)
    for one in (cache, untouched):
        model(ids[:, :100], attention_mask=mask[:, :100], past_key_values=one)
    given, message = WRONG[wrong]
    given = {"input_ids": ids[:, 100:], **given}
    if isinstance(given.get("attention_mask"), str):
        given["attention_mask"] = mask
    with pytest.raises(longspan.LongspanError, match=message):
        model(**given, past_key_values=cache)
    out = [model(ids[:, 100:], attention_mask=mask, past_key_values=one).logits for one in (cache, untouched)]
    assert torch.equal(*out)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", *MIXED])
def test_a_first_forward_that_broke_off(name):
    model, cache = filled(name, 1)
    cache.reset()
    broken_off(model, cache, prompts(1, 30))
    with pytest.raises(longspan.CacheError, match="hold 0 to 30 tokens"):
        model(prompts(1, 30), past_key_values=cache)
    cache.crop(-30)
    assert lengths(cache) == [0, 0]


@torch.no_grad()
@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("tokens", [-20, 80])
def test_what_a_sliding_window_has_forgotten_is_not_gone_back_to(name, tokens):
    model, cache = filled(name)
    with pytest.raises(longspan.CacheError, match="20 tokens cannot be dropped: layer 0 is attended by the model"):
        cache.crop(tokens)
    assert lengths(cache) == [100, 100] and cache.croppable(80) == 0
    more = prompts(1, 5, seed=2)
    again, whole = filled(name)
    assert torch.equal(model(more, past_key_values=cache).logits, again(more, past_key_values=whole).logits)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [-20, 80])
@pytest.mark.parametrize("name", ["llama", *MIXED])
def test_crop_in_both_of_transformers_forms(name, tokens):
    """Sliding windows can go back by what they took in since they were told to keep it."""
    model, cache = filled(name, 80)
    cache.activate_past_recording()
    model(prompts(1, 20, seed=3), past_key_values=cache)
    assert cache.croppable(80) == 80
    cache.crop(tokens)
    more = prompts(1, 5, seed=2)
    again, whole = filled(name, 80)
    assert lengths(cache) == [80, 80]
    torch.testing.assert_close(
        model(more, past_key_values=cache).logits, again(more, past_key_values=whole).logits, rtol=0, atol=1e-4
    )
    with pytest.raises(longspan.CacheError, match="layer 0") if name in SLIDING else torch.no_grad():
        cache.crop(10)  # further back than was kept


@torch.no_grad()
@pytest.mark.parametrize(
    "spec", ["dca", "infllm", *(f"longheads:chunk_length={size},num_chunks=4" for size in (8, 16))]
)
def test_as_many_tokens_as_assisted_decoding_tries_can_be_dropped(spec):
    """Of 60 candidates 59 at most are dropped again, at any length."""
    for tokens in (300, 303, 310, 319, 325):
        model, cache = filled("llama", tokens, spec)
        for _ in range(3):
            model(prompts(1, 60), past_key_values=cache)
            cache.crop(-59)
        assert set(lengths(cache)) == {tokens + 3}


@torch.no_grad()
def test_an_index_that_cannot_go_back_leaves_every_layer_as_it_was():
    _model, cache = filled("smollm3", 300, "longheads:chunk_length=4")
    with pytest.raises(longspan.CacheError, match="fewer candidate tokens"):
        cache.crop(-149)
    assert lengths(cache) == [300, 300]


@torch.no_grad()
@pytest.mark.parametrize("call", ["batch_select_indices", "reorder_cache"])
@pytest.mark.parametrize("rows", [[0, 2], [-1, 0], [True, False, True]])
def test_rows_that_a_cache_has_not_are_refused_before_a_layer_changes(call, rows):
    model = make("gemma2")
    longspan.extend(model, "dca")
    padded, mask, _ = left_padded(prompts(), [3, 0])
    cache, whole = longspan.new_cache(model), longspan.new_cache(model)
    for one in (cache, whole):
        model(padded, attention_mask=mask, past_key_values=one)
    with pytest.raises(longspan.CacheError, match="holds 2 rows"):
        getattr(cache, call)(torch.tensor(rows))
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        cache.batch_repeat_interleave(0)
    more, mask = prompts(2, 5, seed=2), torch.cat((mask, torch.ones_like(mask[:, :5])), dim=1)
    one, other = (model(more, attention_mask=mask, past_key_values=x).logits for x in (cache, whole))
    assert torch.equal(one, other)


@torch.no_grad()
def test_a_state_that_every_token_went_into_is_not_gone_back_to():
    model = qwen3_next()
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    cache.activate_past_recording()
    model(prompts(1, 80), past_key_values=cache)
    assert cache.croppable(70) == 0
    with pytest.raises(longspan.CacheError, match="layer 0 is attended by the model itself"):
        cache.crop(-10)


@torch.no_grad()
@pytest.mark.parametrize(
    ("recorded", "dropped", "goes"), [(40, 10, True), (40, 40, True), (40, 41, False), (0, 1, False)]
)
def test_a_convolution_goes_back_by_what_it_recorded(recorded, dropped, goes):
    model, ids = lfm2(), prompts(1, 100)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    model(ids[:, :40], past_key_values=cache)
    cache.activate_past_recording()
    if recorded:
        model(ids[:, 40 : 40 + recorded], past_key_values=cache)
    left = 40 + recorded - dropped
    if not goes:
        with pytest.raises(longspan.CacheError, match="layer 0 is attended by the model itself"):
            cache.crop(left)
        return
    cache.crop(left)
    ours = model(ids[:, left:], past_key_values=cache).logits
    torch.testing.assert_close(ours, model(ids).logits[:, left:], rtol=0, atol=1e-4)


@torch.no_grad()
def test_layers_that_share_the_keys_of_others_are_no_hindrance():
    model, ids = gemma3n(), prompts(1, 60)
    longspan.extend(model, "dca")
    plain, lookup = (
        model.generate(ids, max_new_tokens=12, do_sample=False, **more)
        for more in ({}, {"prompt_lookup_num_tokens": 3})
    )
    assert torch.equal(plain, lookup)


@torch.no_grad()
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_that_broke_off_is_seen_where_a_layer_keeps_a_state(error):
    """Layer 0 has taken in what layer 1 has not, and nothing shows how much."""
    model, ids = lfm2(), prompts(1, 60)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    model(ids[:, :40], past_key_values=cache)
    broken_off(model, cache, ids[:, 40:], error)
    for again in (cache, copy.deepcopy(cache)):
        assert again.croppable(30) == 0
        with pytest.raises(longspan.CacheError, match=r"was interrupted.*cache\.reset\(\)"):
            model(ids[:, 40:], past_key_values=again)
    cache.reset()
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("forget", [lambda cache: cache.reset(), lambda cache: cache.crop(-60)], ids=["reset", "crop"])
def test_a_forward_that_broke_off_is_forgotten_at_once(error, forget):
    """An interrupt leaves no hook of torch to say that the forward has ended."""
    model, ids = lfm2(), prompts(1, 60)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    model(ids[:, :40], past_key_values=cache)
    broken_off(model, cache, ids[:, 40:], error)
    forget(cache)
    for again in (copy.deepcopy(cache), cache):
        torch.testing.assert_close(model(ids, past_key_values=again).logits, model(ids).logits, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("forget", [lambda cache: cache.crop(40), lambda cache: cache.reset()], ids=["crop", "reset"])
def test_a_restored_model_takes_no_cache_of_a_forward_that_was_interrupted(forget):
    model, cache = filled("llama", 40)
    ids = prompts(1, 60)
    broken_off(model, cache, ids[:, 40:], KeyboardInterrupt)
    forget(cache)
    longspan.restore(model)
    held = cache.get_seq_length()
    with pytest.raises(longspan.CacheError, match="passed to a model that is not extended"):
        model(ids[:, held : held + 1], past_key_values=cache)
    longspan.extend(model, "dca")
    found = model(ids[:, held:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(ids).logits[:, held:], rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("make_it", [lfm2, qwen3_next])
def test_a_state_that_a_restored_model_wrote_to_is_seen(make_it):
    """Layer 0 runs before layer 1 refuses the cache."""
    model, ids = make_it(), prompts(1, 60)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    model(ids[:, :40], past_key_values=cache)
    longspan.restore(model)
    with pytest.raises(longspan.CacheError, match="passed to a model that is not extended"):
        model(ids[:, 40:41], past_key_values=cache)
    longspan.extend(model, "dca")
    with pytest.raises(longspan.CacheError, match=r"was interrupted.*cache\.reset\(\)"):
        model(ids[:, 40:], past_key_values=cache)
    cache.reset()
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits, rtol=0, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("make_it", [lfm2, qwen3_next])
def test_rows_of_layers_that_keep_a_state(make_it):
    model, ids = make_it(), prompts(3, 60)
    longspan.extend(model, "dca")
    whole = model(ids).logits
    for rows, change in (
        ([0, 0, 1, 1], lambda cache: cache.batch_repeat_interleave(2)),
        ([1], lambda cache: cache.batch_select_indices(torch.tensor([False, True]))),
        ([1, 0, 1], lambda cache: cache.batch_select_indices(torch.tensor([1, 0, 1]))),
    ):
        cache = longspan.new_cache(model)
        model(ids[:2, :40], past_key_values=cache)
        change(cache)
        ours = model(ids[rows, 40:], past_key_values=cache).logits
        torch.testing.assert_close(ours, whole[rows, 40:], rtol=0, atol=1e-3)
        cache.reset()
        torch.testing.assert_close(model(ids, past_key_values=cache).logits, whole, rtol=0, atol=1e-3)


@pytest.mark.parametrize("make_it", [lfm2, qwen3_next, lambda: make("gemma2")], ids=["lfm2", "qwen3_next", "gemma2"])
def test_copies_and_resets_outside_of_the_mode_that_the_tokens_were_read_in(make_it):
    model, ids = make_it(), prompts(1, 60)
    longspan.extend(model, "dca")
    whole = model(ids).logits
    cache = longspan.new_cache(model)
    model(ids[:, :40], past_key_values=cache)  # with gradients
    for one in (copy.deepcopy(cache), cache):
        torch.testing.assert_close(model(ids[:, 40:], past_key_values=one).logits, whole[:, 40:], rtol=0, atol=1e-3)
    for forget in (lambda: cache.reset(), lambda: cache.crop(-60)):
        cache.reset()
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        forget()
        torch.testing.assert_close(model(ids, past_key_values=cache).logits, whole, rtol=0, atol=1e-3)
