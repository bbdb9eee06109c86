"""What conversations hold in memory and on the disk is counted, and nothing is held twice."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

import longspan
from longspan.memory import segments
from longspan.serve.caches import Caches, PrefixCache, common_prefix
from support.hf_models import gemma3n, lfm2, prompts, qwen3_next


def gemma2(window, tokens=64):
    """A small Gemma 2 under DCA, of whose two layers the first one is transformers' own, with a sliding window."""
    config = Gemma2Config(
        vocab_size=tokens, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=window, max_position_embeddings=2 * window,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    longspan.extend(model, "dca")
    return model


def held():
    """Bytes of all tensors of this process."""
    gc.collect()
    found = [x.untyped_storage() for x in gc.get_objects() if type(x) is torch.Tensor]
    return sum({one.data_ptr(): one.nbytes() for one in found}.values())


@pytest.mark.parametrize("sliding", [False, True])
def test_what_a_conversation_has_beside_its_document_is_counted(bundled, book, sliding):
    """Sliding windows and the inputs of open chunks are its own, however long the document is."""
    model, tokenizer = bundled
    if sliding:
        model = gemma2(512, len(tokenizer))
    document, caches = longspan.read(model, tokenizer, book), Caches(model, memory=2**30, directory=None, disk=0)
    ids = document.prompt("What then?")
    taken = caches.take(ids, [document])
    with torch.inference_mode():
        model(input_ids=ids[None, taken.tokens :], past_key_values=taken.cache, use_cache=True)
    cache = taken.cache
    own = [x for store in cache.stores if not sliding for x in store.index.input_copies]
    own += [x for layer in cache.layers[:1] if sliding for x in (layer.keys, layer.values)]
    caches.keep(ids, replace(taken, tokens=len(ids)))
    assert 2 * sum(x.nbytes for x in own) > caches.nbytes > sum(x.nbytes for x in own) > 0


def test_what_lies_on_the_disk_takes_no_memory(tmp_path):
    """The last tokens of a sliding window are no tokens of a file, and as many bytes."""
    model = gemma2(512)
    longer = torch.randint(64, (605,))
    ids, caches = longer[:600], Caches(model, memory=0, directory=tmp_path, disk=2**30)
    with torch.inference_mode():
        expected = model(input_ids=longer[None]).logits[0, -1]
        before, taken = held(), caches.take(ids, [])
        model(input_ids=ids[None], past_key_values=taken.cache)
        caches.keep(ids, replace(taken, tokens=len(ids)))
        del taken
        windows, others = (tokens * 2 * 16 * 4 for tokens in (511, 600))
        assert held() - before < windows / 20 and caches.disk_nbytes > windows + others
        again = caches.take(longer, [])
        assert again.tokens == len(ids)
        found = model(input_ids=longer[None, again.tokens :], past_key_values=again.cache).logits[0, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_cache_that_cannot_go_back_is_left_alone(tmp_path):
    """A stock sliding layer has not kept what lies before its window."""
    model = gemma2(32)
    caches = Caches(model, memory=2**30, directory=None, disk=0)
    ids = torch.randint(64, (60,))
    taken = caches.take(ids, [])
    with torch.no_grad():
        model(input_ids=ids[None], past_key_values=taken.cache)
    taken.tokens = 60
    caches.keep(ids, taken)
    other = torch.cat((ids[:40], torch.randint(64, (5,))))
    again = caches.take(other, [])
    with torch.no_grad():
        found = model(input_ids=other[None, again.tokens :], past_key_values=again.cache).logits[0, -1]
        expected = model(input_ids=other[None]).logits[0, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_tokens_of_a_conversation_are_counted(bundled):
    nothing, ids = SimpleNamespace(layers=[], stores=[], nbytes=0), torch.arange(1_000)
    for memory, kept in ((ids.nbytes, 1), (ids.nbytes - 1, 0)):
        caches = Caches(bundled[0], memory=memory, directory=None, disk=0)
        caches.keep(ids, PrefixCache(nothing, len(ids)))
        assert len(caches) == kept and caches.nbytes == kept * ids.nbytes


def test_conversations_do_not_hold_the_tokens_of_their_document(bundled, book, tmp_path):
    """Eight bytes a token in each of thousands of conversations, whose files have what they add to it."""
    model, tokenizer = bundled
    document, caches = longspan.read(model, tokenizer, book), Caches(model, memory=0, directory=tmp_path, disk=2**30)
    ids = [document.prompt(f"{n}. What then?") for n in range(3)]
    before = held()
    for one in ids:
        taken = caches.take(one, [document])
        with torch.inference_mode():
            model(input_ids=one[None, taken.tokens :], past_key_values=taken.cache, use_cache=True)
        caches.keep(one.clone(), replace(taken, tokens=len(one)))
        del taken
    assert len(caches) == 3 and held() - before < 8 * document.tokens
    again = caches.take(torch.cat((ids[0], ids[0][-1:])), [document])
    assert again.tokens == len(ids[0])
    # Named or not, it is the conversation of the document that the prompt begins with.
    assert caches.take(torch.cat((ids[1], ids[1][-1:])), []).tokens == len(ids[1])


def test_a_prompt_that_shares_a_part_of_a_document_is_not_kept_as_one_about_it(bundled, book, monkeypatch):
    """On a GPU the cache of a conversation about the document, which it goes on from, has its own copy of that."""
    monkeypatch.setattr(Caches, "mapped", lambda *_: 0)
    model, tokenizer = bundled
    document, caches = longspan.read(model, tokenizer, book), Caches(model, memory=2**30, directory=None, disk=0)
    part, other = document.contents.ids[:-100], torch.arange(100, 500)

    def ask(ids):
        taken = caches.take(ids, [document])
        with torch.inference_mode():
            logits = model(input_ids=ids[None, taken.tokens :], cache=taken.cache).logits[0, -1]
        caches.keep(ids, replace(taken, tokens=len(ids)))
        return taken.tokens, logits

    ask(document.prompt("What then?"))
    assert 0 < ask(torch.cat((part, other)))[0] <= len(part)
    again = torch.cat((document.contents.ids, other[100:], other[:1]))
    with torch.inference_mode():
        expected = model(input_ids=again[None]).logits[0, -1]
    torch.testing.assert_close(ask(again)[1], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("build", [lfm2, qwen3_next, gemma3n])
def test_layers_that_keep_a_state_or_nothing(build, disk, tmp_path):
    """A prompt that goes on from another, and one that leaves it, read what the cache does not have."""
    model, ids = build(), prompts(1, 260)[0]
    longspan.extend(model, "longheads")
    caches = Caches(model, memory=0 if disk else 2**30, directory=tmp_path, disk=2**30)
    for prompt in (ids[:100], ids[:140], torch.cat((ids[:90], ids[200:]))):
        taken = caches.take(prompt, [])
        with torch.inference_mode():
            found = model(input_ids=prompt[None, taken.tokens :], past_key_values=taken.cache).logits[0, -1]
            expected = model(input_ids=prompt[None]).logits[0, -1]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        taken.tokens = len(prompt)
        caches.keep(prompt, taken)
    assert (caches.nbytes > 0) != disk


@pytest.mark.parametrize("disk", [False, True])
def test_conversations_leave_the_system_mappings_and_files(bundled, book, tmp_path, monkeypatch, disk):
    """A process has some 65,000 mappings and often 1,024 files, and each head of each conversation takes some."""
    model, tokenizer = bundled
    document = longspan.read(model, tokenizer, book)
    caches = Caches(model, memory=2**30, directory=tmp_path if disk else None, disk=2**34)
    before, most = segments.mappings(), 5
    one = document.cache()
    each = segments.mappings() - before
    del one
    if not each:
        pytest.skip("nothing is mapped here")
    monkeypatch.setattr("longspan.serve.caches.most_mappings", lambda: 2 * (before + most * each))
    monkeypatch.setattr("resource.getrlimit", lambda _: (8, 8))
    for n in range(3 * most):
        ids = document.prompt(f"Question {n}?")
        taken = caches.take(ids, [document])
        with torch.inference_mode():
            model(input_ids=ids[None, taken.tokens :], past_key_values=taken.cache, use_cache=True)
        taken.tokens = len(ids)
        caches.keep(ids, taken)
        del taken
        assert segments.mappings() - before <= most * each
        there = min(n + 1, most) + (min(max(n + 1 - most, 0), 4) if disk else 0)
        assert len(caches) == there, "more were given up than had to be"
    last = caches.take(torch.cat((ids, ids[-1:])), [document])
    assert last.tokens == len(ids), "the least recently used goes first"


def test_tokens_of_a_document_are_not_compared_again_for_each_conversation(bundled, book, monkeypatch):
    model, tokenizer = bundled
    document, compared = longspan.read(model, tokenizer, book), []
    caches = Caches(model, memory=2**30, directory=None, disk=0)

    def ask(question):
        ids, before = document.prompt(question), len(compared)
        taken = caches.take(ids, [document])
        taken.tokens = len(ids)
        caches.keep(ids, taken)
        return taken, sum(compared[before:])

    monkeypatch.setattr(
        "longspan.serve.caches.common_prefix",
        lambda a, b: (compared.append(min(len(a), len(b))), common_prefix(a, b))[1],
    )
    _, first = ask("One?")
    for n in range(5):
        taken, last = ask(f"{n}: another?")
        assert taken.document is document
    assert first == document.tokens and last < document.tokens + 500
