"""What was read before is not read again, and answers are the same with and without."""

from __future__ import annotations

import errno
import gc
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.memory import segments
from longspan.memory.mapped import RefusedError
from longspan.serve.caches import Caches, PrefixCache, common_prefix
from support.hf_models import gemma3n, lfm2, prompts, qwen3_next
from support.serving import KEY, QUESTION, Served, cached, said, wait_for

LONG = heldout_text()[6_000:8_400]
CHUNK = 32  # tokens, of LongHeads in the bundled window


def talk(served, first, turns, **more):
    """Answers of a conversation, and what each did not read again."""
    messages, found = [], []
    for question in [first, *turns]:
        messages.append({"role": "user", "content": question})
        answer = served.ask(messages, max_tokens=6, **more)
        found.append((said(answer), cached(answer), answer["usage"]["prompt_tokens"]))
        messages.append({"role": "assistant", "content": said(answer)})
    return found


@pytest.fixture
def alone(start, tmp_path):
    """What a server that keeps nothing answers."""
    served = start(documents=tmp_path / "alone", memory=0)
    return lambda *args, **more: talk(served, *args, **more)


@pytest.mark.parametrize("disk", [False, True])
def test_turns_are_kept_in_memory_or_on_disk(start, alone, tmp_path, disk):
    served = start(**({"memory": 0, "kv_dir": tmp_path} if disk else {}))
    turns = ["\nWhat then?", "\nAnd after that?"]
    expected, found = alone(LONG, turns), talk(served, LONG, turns)
    assert [text for text, *_ in found] == [text for text, *_ in expected]
    assert [read for _, read, _ in expected] == [0, 0, 0] and found[0][1] == 0
    # All of the turn before but its last token, which no forward had read.
    for before, after in pairwise(found):
        assert after[1] == before[2] + 6 - 1
    assert (served.host.caches.disk_nbytes > 0) == disk and (served.host.caches.nbytes == 0) == disk
    assert len(served.host.caches) == 1, "the turns before are part of the last one"


@pytest.mark.parametrize("method", ["longheads:score=bounds", "dca"])
@pytest.mark.parametrize("tier", ["device", "host", "disk", "auto"])
def test_caches_in_use_may_lie_elsewhere(book, tmp_path, tier, method):
    model, tokenizer = load_bundled()
    longspan.extend(model, method, kv_tier=tier, kv_dir=tmp_path if tier in ("disk", "auto") else None)
    turns = ["\nWhat then?", "\nAnd after that?"]
    found = []
    for kept in ({"memory": 0}, {"memory": 2**30}, {"memory": 0, "kv_dir": tmp_path}):
        served = Served(model, tokenizer, tmp_path / f"documents-{len(found)}", **kept)
        id = served.add(book)
        found.append(talk(served, LONG, turns) + talk(served, QUESTION, turns, document=id))
        served.close()
    nothing, *others = found
    assert [read for _, read, _ in nothing][:3] == [0, 0, 0] and KEY in nothing[3][0]
    for other in others:
        assert [text for text, *_ in other] == [text for text, *_ in nothing]
        for before, after in pairwise(other[:3]):
            assert after[1] == before[2] + 6 - 1


@pytest.mark.parametrize(("tier", "device", "mapped"), [
    ("device", "cuda", 0), ("auto", "cuda", 0), ("host", "cuda", 7), ("disk", "cuda", 7), ("auto", "cpu", 7),
])  # fmt: skip
def test_tokens_that_a_gpu_may_have_a_copy_of_are_counted(tier, device, mapped):
    caches = SimpleNamespace(
        _attachment=SimpleNamespace(report=SimpleNamespace(kv_tier=tier)),
        _model=SimpleNamespace(device=torch.device(device)),
    )
    assert Caches.mapped(caches, 7) == mapped


def test_a_question_asked_again_and_another_way(start, alone):
    served = start()
    first = talk(served, LONG, [])
    assert talk(served, LONG, [])[0][:2] == (first[0][0], first[0][2] - 1), "of the same prompt one token is read"
    other = f"{LONG} But why?"
    answer = talk(served, other, [])[0]
    assert answer[0] == alone(other, [])[0][0] and answer[1] > 0.9 * answer[2]
    unlike = f"In short: {LONG}"
    assert talk(served, unlike, [])[0][1] == 0


@pytest.mark.long
@pytest.mark.parametrize("disk", [False, True])
def test_a_prompt_that_leaves_a_conversation_long_before_its_end(start, tmp_path, disk):
    """A long answer is dropped, or half of a text, in the middle of a chunk whose inputs are gone."""
    served = start(documents=tmp_path / "one", **({"memory": 0, "kv_dir": tmp_path} if disk else {}))
    forgetful = start(documents=tmp_path / "two", memory=0)
    half = f"{LONG[: len(LONG) // 2]}. The end."
    expected = {text: forgetful.ask(text, max_tokens=150) for text in (LONG, half)}
    assert all(cached(answer) == 0 for answer in expected.values())
    for text, least in ((LONG, 0), (LONG, 0.9), (half, 0.8), (LONG, 0.9)):
        answer = served.ask(text, max_tokens=150)
        assert said(answer) == said(expected[text])
        assert cached(answer) >= least * answer["usage"]["prompt_tokens"]


def test_a_conversation_that_cannot_be_cut_is_kept(bundled):
    """Two ask a document the same first question: the turns of one are not lost because the other cannot use them."""
    model, tokenizer = bundled
    size = next(n for n in range(1_800, 1_900) if len(tokenizer(LONG[:n])["input_ids"]) % CHUNK == 5)
    document = longspan.read(model, tokenizer, LONG[:size])
    assert document.tokens % CHUNK == 5
    caches = Caches(model, memory=2**30, directory=None, disk=0)
    more = torch.randint(3, 1000, (200,), generator=torch.Generator().manual_seed(0))
    ids = torch.cat((document.contents.ids, more))
    taken = caches.take(ids, [document])
    with torch.inference_mode():
        model(input_ids=ids[None, document.tokens :], past_key_values=taken.cache, use_cache=True)
    caches.keep(ids, replace(taken, tokens=len(ids)))
    other = caches.take(torch.cat((ids[: document.tokens + 20], ids[:9])), [document])
    assert other.tokens == document.tokens and len(caches) == 1
    assert caches.take(torch.cat((ids, ids[:9])), [document]).tokens == len(ids)


def test_conversations_about_a_document_share_it(start, alone, book, tmp_path):
    served = start(memory=0, kv_dir=tmp_path)
    id = served.add(book)
    tokens = served.document(id)["tokens"]
    a, b = (talk(served, question, ["\nWho says so?"], document=id) for question in (QUESTION, "Where does it go?"))
    assert all(turn[1] >= tokens for turn in a + b) and a[1][1] > tokens and b[1][1] > tokens
    again = talk(served, QUESTION, ["\nWho says so?"], document=id)
    assert [text for text, *_ in again] == [text for text, *_ in a]
    # The bytes of the document count for none of them.
    assert served.host.caches.disk_nbytes < tokens * 4 * 2 * 2 * 32 * 4


def test_the_least_recently_used_goes_first(start):
    one = start()
    talk(one, LONG, [])
    size = one.host.caches.nbytes
    one.close()
    served = start(memory=int(2.5 * size))
    texts = [f"{n}: {LONG}" for n in range(3)]
    for text in texts[:2]:
        talk(served, text, [])
    talk(served, texts[0], [])
    talk(served, texts[2], [])
    assert served.host.caches.nbytes <= 2.5 * size
    reread = {n: talk(served, texts[n], [])[0][1] == 0 for n in (0, 2)}
    assert reread == {0: False, 2: False} and talk(served, texts[1], [])[0][1] == 0


def test_the_disk_has_a_limit_too(start, tmp_path):
    served = start(memory=0, kv_dir=tmp_path, kv_disk=1_000)
    assert talk(served, LONG, [])[0][0] == talk(served, LONG, [])[0][0]
    assert len(served.host.caches) == 0


def test_nothing_of_a_document_that_was_deleted_is_kept(start, book):
    served = start()
    id = served.add(book)
    served.ask(QUESTION, document=id, max_tokens=2)
    assert len(served.host.caches) == 1
    served.http.delete(f"/v1/documents/{id}")
    served.ask("x", max_tokens=1)
    assert len(served.host.caches) == 1, "of the question to no document alone"
    assert cached(served.ask(f"{book}\n{QUESTION}", max_tokens=2)) == 0


def test_common():
    a = torch.arange(200)
    assert (
        common_prefix(a, a) == 200 and common_prefix(a, a[:70]) == 70 and common_prefix(a, torch.tensor([0, 1, 9])) == 2
    )
    b = a.clone()
    b[150] = -1
    assert common_prefix(a, b) == 150 and common_prefix(a[:0], b) == 0


def test_a_cache_is_for_one_request_at_a_time(bundled):
    model, _ = bundled
    caches = Caches(model, memory=2**30, directory=None, disk=0)
    ids = torch.randint(3, 1000, (40,), generator=torch.Generator().manual_seed(0))
    taken = caches.take(ids, [])
    with torch.inference_mode():
        model(input_ids=ids[None], past_key_values=taken.cache, use_cache=True)
    caches.keep(ids, taken)
    longer = torch.cat((ids, ids[:5]))
    first, second = caches.take(longer, []), caches.take(longer, [])
    assert first.tokens == 40 and second.tokens == 0 and first.cache is not second.cache


def test_a_turn_about_a_document_is_taken_back(start, book, tmp_path):
    """Going back behind what lies in memory of its own would write to the document's pages, which are read-only."""
    served = start(documents=tmp_path / "one", kv_dir=tmp_path, memory=0)
    kept = start(documents=tmp_path / "two")
    ids = [server.add(book) for server in (served, kept)]
    first = [{"role": "user", "content": QUESTION + " the number that was said to be the pass key"}]
    for last in ("\nWho says so?", "\nWhere is it?"):
        answers = []
        for server, id in zip((served, kept), ids, strict=True):
            messages = [*first, {"role": "assistant", "content": said(server.ask(first, document=id, max_tokens=30))}]
            messages.append({"role": "user", "content": last})
            answers.append([said(server.ask(messages, document=id, max_tokens=6)) for _ in range(2)])
        assert answers[0] == answers[1] and answers[0][0] == answers[0][1]


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


@pytest.mark.parametrize(("method", "copied"), [("dca", True), ("longheads:score=bounds", False)])
def test_a_document_in_int8(bundled, book, tmp_path, caplog, method, copied):
    """What was said about it is exact, and goes to no file in int8; a copy of it counts as memory."""
    model, tokenizer = bundled
    longspan.extend(model, method)
    document = longspan.read(model, tokenizer, book, kv="int8")
    for memory, kept in ((2**30, 1), (0, 0)):
        caches = Caches(model, memory=memory, directory=tmp_path, disk=2**30)
        ids = document.prompt("One?")
        taken = caches.take(ids, [document])
        assert taken.document is document and taken.mapped == (0 if copied else document.tokens)
        with torch.inference_mode():
            model(input_ids=ids[None, taken.tokens :], past_key_values=taken.cache, use_cache=True)
        taken.tokens = len(ids)
        caches.keep(ids, taken)
        assert len(caches) == kept
    assert "its document is in int8" in caplog.text


def test_a_folder_that_cannot_be_written_to_is_said(start, tmp_path, caplog):
    place = tmp_path / "kv"
    place.mkdir()
    served = start(memory=0, kv_dir=place)
    place.rmdir()
    talk(served, LONG, [])
    wait_for(lambda: f"a conversation cannot be kept in {place}" in caplog.text)
    assert len(served.host.caches) == 0 and talk(served, LONG, [])[0][1] == 0


@pytest.mark.parametrize("fails", ["mapping", "reading"])
def test_a_conversation_on_disk_that_cannot_be_opened_is_read_again(start, alone, tmp_path, monkeypatch, caplog, fails):
    """The system grants no mapping more, or the disk fails."""

    def refuse(*_, **__):
        raise RefusedError("Cannot allocate memory") if fails == "mapping" else OSError(errno.EIO, "Input/output error")

    place = "longspan.memory.segments._Region._mmap" if fails == "mapping" else "longspan.serve.caches.read_into"
    served = start(memory=0, kv_dir=tmp_path)
    turns = ["\nWhat then?"]
    expected = [text for text, *_ in alone(LONG, turns)]
    assert talk(served, LONG, [])[0][0] == expected[0] and served.host.caches.disk_nbytes > 0
    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        found = talk(served, LONG, turns)
    assert [text for text, *_ in found] == expected and [read for _, read, _ in found] == [0, 0]
    assert f"a conversation in {tmp_path} cannot be opened, so its prompt is read again" in caplog.text
    assert talk(served, LONG, turns)[1][1] > 0, "it was kept again"
