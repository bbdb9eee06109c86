"""Dropped tokens leave nothing behind: neither in what remains, nor in the tokens of assisted decoding."""

from __future__ import annotations

import os

import pytest
import torch
from transformers import LlamaForCausalLM

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.methods import METHODS
from support.hf_models import gemma3_with_images, gemma3n, gemma4, left_padded, make, prompts

# Query chunks inside of the window as well, where calls of unequally padded rows begin at borders of the one alone.
DENSE = "infllm:initial=2,local=6,block=3,blocks=2,representatives=2,query_chunk=16,dense=kept"
PADDED = {"alone": [0], "equal padding": [3, 3], "unequal padding": [0, 5, 3]}


def after_guesses(model, ids, guesses, more, pads):
    """The logits of ``more`` after ``ids`` whose call had ``guesses`` behind, which were dropped."""
    cache, mask = longspan.new_cache(model), left_padded(ids, pads)[1]
    ids, both = left_padded(ids, pads)[0], mask
    if guesses is not None:
        both = torch.nn.functional.pad(mask, (0, guesses.shape[1]), value=1)
        model(torch.cat((ids, guesses), dim=1), attention_mask=both, past_key_values=cache)
        cache.crop(-guesses.shape[1])
    else:
        model(ids, attention_mask=mask, past_key_values=cache)
    assert cache.get_seq_length() == ids.shape[1]
    return model(more, attention_mask=torch.nn.functional.pad(mask, (0, more.shape[1]), value=1), past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("padding", PADDED)
@pytest.mark.parametrize("method", [*METHODS, "dca:length_scale=0.1", DENSE])
def test_guesses_that_are_dropped_leave_nothing_behind(method, padding):
    """As if they had never come, whichever they were."""
    model, pads = make("llama"), PADDED[padding]
    longspan.extend(model, method)
    more = prompts(len(pads), 6, seed=5)
    for tokens in (27, 60, 150, 152, 161):
        ids = prompts(len(pads), tokens)
        every = [None, *(prompts(len(pads), count, seed=seed) for count, seed in ((4, 1), (4, 2), (11, 3)))]
        plain, *others = (after_guesses(model, ids, one, more, pads).logits for one in every)
        for other in others:
            torch.testing.assert_close(other, plain, rtol=0, atol=1e-4)


def assistant_of(model):
    """A model that guesses worse than ``model``: the same without its last layer."""
    small = LlamaForCausalLM(type(model.config).from_dict({**model.config.to_dict(), "num_hidden_layers": 1}))
    small.load_state_dict(model.state_dict(), strict=False)
    return small.eval()


def disagreements(method, count, new=16):
    """Of ``count`` prompts beyond the window those whose tokens differ with guesses, looked up or assisted."""
    model, tokenizer = load_bundled()
    assistant = assistant_of(model)
    longspan.extend(model, method)
    ids, found = tokenizer(heldout_text()[: 8000 + 700 * count], return_tensors="pt").input_ids[0], []
    for n in range(count):
        tokens = 530 + 37 * n % 500
        prompt = ids[150 * n : 150 * n + tokens][None]
        prompt[:, 40:60] = prompt[:, -20:]  # something to look up
        plain, looked_up, assisted = (
            model.generate(prompt, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0, **options)
            for options in ({}, {"prompt_lookup_num_tokens": 4 + n % 40}, {"assistant_model": assistant})
        )
        found += [
            (n, name) for name, x in (("looked up", looked_up), ("assisted", assisted)) if not torch.equal(x, plain)
        ]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_guesses_change_no_token(method):
    assert disagreements(method, 3) == []


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_guesses_change_no_token_of_many_prompts(method):
    # `make test-exhaustive` takes 100, which takes hours for all methods.
    assert disagreements(method, int(os.environ.get("LONGSPAN_PROMPTS", "10"))) == []


ESA = "esa:initial=1,local=20,top_k=9,query_chunk=16"


@torch.no_grad()
@pytest.mark.parametrize("make_it", ["gemma2", "gemma3_text", "qwen3", "gpt_neox", gemma3n, gemma4, gemma3_with_images])
def test_tokens_are_computed_again_in_every_kind_of_model(make_it):
    """Layers with a sliding window of their own go back by what they recorded; some decoders are given embeddings."""
    model, ids, more = make(make_it) if isinstance(make_it, str) else make_it(), prompts(1, 159), prompts(1, 5, seed=5)
    longspan.extend(model, ESA)
    found = []
    for dropped in (0, 12):
        cache = longspan.new_cache(model)
        cache.activate_past_recording()
        model(ids[:, :140], past_key_values=cache)
        model(torch.cat((ids[:, 140:], more), dim=1)[:, : 19 + dropped // 4], past_key_values=cache)
        cache.crop(159 - cache.get_seq_length() or 159)
        found.append(model(more, past_key_values=cache).logits)
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


@torch.no_grad()
def test_tokens_that_came_as_embeddings():
    model, ids, more = make("llama"), prompts(1, 200), prompts(1, 5, seed=5)
    longspan.extend(model, ESA)
    embeddings, cache, plain = model.get_input_embeddings()(ids), longspan.new_cache(model), longspan.new_cache(model)
    model(inputs_embeds=embeddings, past_key_values=cache)
    embeddings.zero_()  # the cache has its own
    cache.crop(-60)
    model(ids[:, :140], past_key_values=plain)
    after = [model(more, past_key_values=one).logits for one in (cache, plain)]
    torch.testing.assert_close(*after, rtol=0, atol=1e-4)
    with pytest.raises(longspan.CacheError, match=r"inputs are not kept; cache.crop\(96\)"):
        cache.crop(100)
    assert cache.get_seq_length() == 145
    cache.crop(cache.croppable(100))
    assert cache.get_seq_length() == 96


@torch.no_grad()
def test_a_model_that_is_not_extended_any_more_computes_nothing_again():
    model = make("llama")
    longspan.extend(model, ESA)
    cache = longspan.new_cache(model)
    model(prompts(1, 200), past_key_values=cache)
    longspan.restore(model)
    with pytest.raises(longspan.CacheError, match="the model is not extended"):
        cache.crop(-3)
    assert cache.get_seq_length() == 200
    cache.crop(192)
    assert cache.get_seq_length() == 192


@torch.no_grad()
@pytest.mark.parametrize("seed", [1, 5, 7, 10])
def test_equal_tokens_are_chosen_alike_however_they_came(seed):
    """Their keys are equal in the first layer but for rounding, by which texts of these seeds chose in fp64."""
    model = make("llama", torch.float64)
    longspan.extend(model, "esa")
    first, rest = prompts(1, 30, seed=seed), prompts(2, 100, seed=seed + 50)
    repeated, read = longspan.new_cache(model), longspan.new_cache(model)
    model(first, past_key_values=repeated)
    repeated.batch_repeat_interleave(2)
    model(first.repeat(2, 1), past_key_values=read)
    after = [model(rest, past_key_values=cache).logits for cache in (repeated, read)]
    torch.testing.assert_close(*after, rtol=0, atol=1e-10)
