"""A model takes its cache under both names that transformers has had for it, whatever this one calls it."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaModel

import longspan
import longspan_eval
from longspan.hf.argument import CACHE_ARGUMENT, given_cache
from support.hf_models import make, prompts

NAMES = "cache", "past_key_values"
FAMILIES = ("llama", "gemma3_text", "gpt_neox", "smollm3")


def forward(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    return model(ids, **more).logits[:, -1:]


def inner(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    return model.get_output_embeddings()(model.base_model(ids, **more)[0])[:, -1:]


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("call", [forward, inner])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_goes_on_under_each_name(family: str, name: str, call: Callable[..., torch.Tensor]) -> None:
    model, ids = make(family), prompts(1, 100)
    longspan.extend(model, "dca")
    with torch.no_grad():
        whole = call(model, ids)
        cache = longspan.new_cache(model)
        call(model, ids[:, :70], **{name: cache})
        assert cache.get_seq_length() == 70
        for end in range(71, 101):
            last = call(model, ids[:, end - 1 : end], **{name: cache})
    assert cache.get_seq_length() == 100
    torch.testing.assert_close(last, whole, rtol=1e-4, atol=1e-4)


class EarlierDecoder(LlamaModel):
    """As remote code has it, whatever transformers calls the argument."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        given = {"position_ids": position_ids, "use_cache": use_cache, CACHE_ARGUMENT: past_key_values}
        return super().forward(input_ids, attention_mask, **given)


def test_a_decoder_of_remote_code_is_given_its_cache_under_the_earlier_name() -> None:
    stock, ids = make("llama").model, prompts(1, 100)
    decoder = EarlierDecoder(deepcopy(stock.config)).eval()
    decoder.load_state_dict(stock.state_dict())
    longspan.extend(stock, "dca")
    longspan.extend(decoder, "dca")
    with torch.no_grad():
        whole = stock(ids).last_hidden_state
        cache = longspan.new_cache(decoder)
        parts = [decoder(part, past_key_values=cache).last_hidden_state for part in ids.split([70, 1, 29], dim=1)]
    assert cache.get_seq_length() == 100
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_cache_is_refused_under_each_name(name: str) -> None:
    from transformers import DynamicCache

    model = make("llama")
    longspan.extend(model, "dca")
    with pytest.raises(longspan.CacheError, match=f"{CACHE_ARGUMENT} is a DynamicCache"):
        model(prompts(1, 20), **{name: DynamicCache()})


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_generate_takes_a_cache_under_each_name(name: str) -> None:
    model, ids = make("llama"), prompts(1, 100)
    longspan.extend(model, "longheads")
    whole = model.generate(ids, max_new_tokens=8, do_sample=False)
    cache = longspan.new_cache(model)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False, **{name: cache}), whole)
    assert cache.get_seq_length() == 107


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_cache_beside_none_of_the_other_name_is_taken(name: str) -> None:
    model = make("llama")
    longspan.extend(model, "dca")
    for n, call in enumerate((model, model.base_model), 1):
        cache = longspan.new_cache(model)
        call(prompts(1, 20), **{**dict.fromkeys(NAMES), name: cache})
        assert cache.get_seq_length() == 20, n


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_two_caches_in_one_call_are_refused() -> None:
    model = make("llama")
    longspan.extend(model, "dca")
    twice = {"cache": longspan.new_cache(model), "past_key_values": longspan.new_cache(model)}
    # From 5.24 on generate takes the later one before longspan sees the call, and warns of that.
    words = "two caches, a LongspanCache as cache and a LongspanCache as past_key_values"
    for call in (model, model.base_model, *([] if CACHE_ARGUMENT == "cache" else [model.generate])):
        with pytest.raises(longspan.CacheError, match=words):
            call(prompts(1, 20), **twice)


def test_longspan_uses_no_name_that_transformers_warns_of(caplog: pytest.LogCaptureFixture) -> None:
    """Extending, generating, a cache that is passed on."""
    model, ids = make("llama"), prompts(1, 100)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING), torch.no_grad():
        warnings.simplefilter("error", FutureWarning)
        longspan.extend(model, "longheads")
        model.generate(ids, max_new_tokens=8, do_sample=False, prefill_chunk_size=32)
        model.generate(ids, max_new_tokens=8, do_sample=False, **{CACHE_ARGUMENT: longspan.new_cache(model)})
        with longspan.record(model):
            model(ids)
    assert "deprecated" not in caplog.text
    named = re.compile(r"\bpast_key_values=|\.past_key_values\b")
    files = [*Path(longspan.__file__).parent.rglob("*.py"), *Path(longspan_eval.__file__).parent.rglob("*.py")]
    assert not [file for file in files if named.search(re.sub(r"``.*?``", "", file.read_text()))]


def test_the_name_of_this_transformers_comes_first() -> None:
    one, other = object(), object()
    assert given_cache({CACHE_ARGUMENT: one}) is one
    assert given_cache({"past_key_values": one}) is one
    assert given_cache({"past_key_values": None, CACHE_ARGUMENT: other}) is other
    assert given_cache({}) is None
