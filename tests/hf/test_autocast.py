"""Extended models under ``torch.autocast``."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.errors import CacheError
from longspan.methods import METHODS
from support.hf_models import VOCABULARY, WINDOW, make

pytestmark = pytest.mark.hostile

REDUCED = (torch.bfloat16, torch.float16)


def prompt(length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_inside_the_window_it_errs_no_more_than_stock_does(name, dtype):
    model, ids = make("llama"), prompt(30)
    truth = model(input_ids=ids).logits
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        stock = model(input_ids=ids).logits
    longspan.extend(model, name)
    plain = model(input_ids=ids).logits  # without autocast; some methods change short texts too
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        ours = model(input_ids=ids).logits
    assert ours.dtype == stock.dtype
    assert (ours - plain).abs().max() <= 2 * (stock - truth).abs().max()


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_beyond_the_window_prefill_and_decoding_agree(name, dtype):
    model, ids = make("llama"), prompt(3 * WINDOW)
    longspan.extend(model, name)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
        assert out.shape == (2, 3 * WINDOW + 4)
        cache = longspan.new_cache(model)
        model(input_ids=ids, past_key_values=cache)
        assert {x.dtype for store in cache.stores for x in (*store.keys, store.values)} == {dtype}


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "glm4", "gpt_neox", "hunyuan_v1_dense", "phi"])
def test_a_model_extended_under_autocast_is_extended_alike(family):
    model, ids = make(family), prompt(2 * WINDOW)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = longspan.extend(model, "dca")
    ours = model(input_ids=ids).logits
    outside = longspan.extend(model, "dca")
    assert inside.attached == outside.attached
    assert torch.equal(model(input_ids=ids).logits, ours)


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize("name", ["dca", "longheads", "esa", "infllm"])
def test_a_norm_after_the_rotation_gives_what_attention_runs_in(name, dtype):
    """Its weights are not those of autocast, so that what it gives is wider than values."""
    model, ids = make("hunyuan_v1_dense"), prompt(3 * WINDOW)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        stock = model(input_ids=ids[:, :30]).logits
    longspan.extend(model, name)
    plain, found = model(input_ids=ids[:, :30]).logits, []
    for enabled in (False, True):
        cache = longspan.new_cache(model)
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            ours = model(input_ids=ids[:, :30]).logits
            model(input_ids=ids[:, :-1], past_key_values=cache)
            found.append(model(input_ids=ids[:, -1:], past_key_values=cache).logits)
    assert (ours - plain).abs().max() <= 2 * (stock - plain).abs().max()
    assert (found[1] - found[0]).abs().max() <= 0.1 * found[0].abs().max()  # a choice may differ by rounding


def test_a_cache_goes_on_in_the_dtype_it_was_begun_in():
    model, ids = make("llama"), prompt(20)
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(input_ids=ids, past_key_values=cache)
    with pytest.raises(CacheError, match="bfloat16"):
        model(input_ids=ids[:, :1], past_key_values=cache)


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_a_calibration_is_as_exact_in_a_cache_that_was_filled_under_autocast_and_reset(dtype):
    model, ids = make("llama"), prompt(3 * WINDOW)
    made = longspan.calibrate(model, [prompt(300).flatten()], tokens=500, progress=False)
    longspan.extend(model, "esa", calibration=made)
    cache, fresh = longspan.new_cache(model), longspan.new_cache(model)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=dtype):
            model(input_ids=ids, past_key_values=cache)
        cache.reset()
        found, expected = (model(input_ids=ids, past_key_values=one).logits for one in (cache, fresh))
    assert torch.equal(found, expected)
    for own, other in zip(cache.stores, fresh.stores, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own.state(), other.state(), strict=True))
