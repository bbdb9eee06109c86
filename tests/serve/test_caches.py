"""What was read before is not read again, and answers are the same with and without."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.memory.mapped import RefusedError
from longspan.serve.caches import Caches, common_prefix
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
