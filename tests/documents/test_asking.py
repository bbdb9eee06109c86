"""What is asked of a document that grew meanwhile, and the memory that an answer takes."""

from __future__ import annotations

import time

import pytest
import torch

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.documents.conversation import Conversation
from longspan.errors import DocumentError
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.machine import usage
from longspan.methods.parse import parse_method
from support.token_texts import without_first_space

ASK = "Who is the narrator?"
MORE = ("longheads", "longheads:score=token_max", "infllm", "lm-infinite")
METHODS = ("dca", "longheads:score=bounds", "esa", *(pytest.param(one, marks=pytest.mark.long) for one in MORE))


def test_a_conversation_about_a_document_that_grew(document, monkeypatch):
    """What was cached is of the shorter document, and no prefix of what is asked now."""
    caches, generate = [], document.model.generate

    def spy(*args, **options):
        caches.append(options[CACHE_ARGUMENT])
        return generate(*args, **options)

    monkeypatch.setattr(document.model, "generate", spy)
    talk = Conversation(document)
    talk.say(ASK, 6)
    document.append("\nAnd the ship sank on Tuesday." * 20)
    for question in ("And then?", "And now?"):
        talk.say(question, 6)
    assert caches[0] is not caches[1] is caches[2], "a prefix is not read again"
    found, ids = [], document.prompt(ASK)[None, document.tokens :]
    for cache in (document.cache(), caches[-1]):
        cache.crop(document.tokens)
        with torch.inference_mode():
            found.append(document.model(ids, past_key_values=cache).logits)
    assert torch.equal(*found)


@pytest.mark.parametrize(("said", "several"), [(3, False), (3, True), (0, False)])
def test_the_token_that_ends_an_answer_is_the_callers(document, said, several):
    """The layout writes the end of a turn itself, so the next question does not follow two."""
    talk = Conversation(document)
    end = document.ask(ASK, 6).tokens[said]
    answer = talk.say(ASK, 6, eos_token_id=[end, 3] if several else end)
    assert answer.tokens[-1] == end and talk.turns[0].answered.tolist() == list(answer.tokens[:-1])


def test_the_passages_are_those_of_the_last_answer(document):
    talk = Conversation(document)
    talk.say(ASK, 6)
    assert talk.passages() == document.ask(ASK, 6, passages=True).passages
    talk.say("And then?", 3)
    turn = talk.turns[-1]
    again = document.attended(talk.ids()[:-3], turn.answer.tokens)
    assert len(turn.answered) == 3 and talk.passages() == again.passages()


def test_what_is_streamed_is_the_answer(fresh, tokenizer, text):
    """Also under a tokenizer that leaves out the space that a text, and each line by itself, begins with."""
    document = longspan.read(fresh(), without_first_space(tokenizer), text, prefill_chunk=300)
    ids = tokenizer("def f(x):\n    if x:\n        return x\n - é\n", add_special_tokens=False)["input_ids"]
    ids.insert(3, tokenizer.bos_token_id)
    first, parts = len(document.prompt(ASK)), []
    answer = document.ask(
        ASK, len(ids), stream=parts.append, prefix_allowed_tokens_fn=lambda row, so_far: [ids[len(so_far) - first]]
    )
    assert answer.tokens == tuple(ids) and "\n    if x:\n        return x\n -" in answer.text
    assert "<" not in answer.text, "a special token"
    assert "".join(parts) == answer.text and len(parts) > 9


@pytest.mark.parametrize(("name", "value"), [("use_cache", False), ("cache_implementation", "static")])
def test_a_generation_config_that_is_of_another_cache(document, name, value):
    """As checkpoints have it that were trained last."""
    expected = document.ask(ASK, 6).tokens
    setattr(document.model.generation_config, name, value)
    assert document.ask(ASK, 6).tokens == expected
    with pytest.raises(DocumentError, match=f"{name}: set by ask itself; leave it out"):
        document.ask(ASK, 6, **{name: value})


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("spec", METHODS)
def test_tokens_of_a_text_are_dropped_and_written_anew(spec, calibrated, tmp_path):
    """The files that they lie in are mapped read-only, and stay as they are."""
    method = parse_method(spec)
    if calibrated and not method.uses_calibration:
        pytest.skip("has no use for a calibration")
    model, tokenizer = load_bundled()
    calibration = longspan.bundled_calibration() if calibrated else None
    options = {"method": method, "calibration": calibration, "prefill_chunk": 300}
    document = longspan.read(model, tokenizer, heldout_text()[:6000], out=tmp_path / "text", **options)
    answer, ids = document.ask(ASK, 5).text, document.contents.ids[None]
    files = {path: path.read_bytes() for path in (tmp_path / "text").rglob("*") if path.is_file()}
    for dropped in (1, 33, 64, 700):
        cache, length = document.cache(), document.tokens - dropped
        length = cache.croppable(length)
        if not length:
            continue  # a method that has no longer what it needs for less
        cache.crop(length - document.tokens)
        fresh = longspan.new_cache(model)
        with torch.inference_mode():
            found = model(ids[:, length:], past_key_values=cache).logits
            for at in [*range(0, length, 300), length]:
                stop = ids.shape[1] if at == length else min(at + 300, length)
                expected = model(ids[:, at:stop], past_key_values=fresh).logits
        torch.testing.assert_close(found, expected[:, -found.shape[1] :], atol=2e-4, rtol=1e-4)
    assert all(path.read_bytes() == content for path, content in files.items())
    assert document.ask(ASK, 5).text == answer


def test_the_most_memory_is_seen_inside_of_a_forward(document):
    if document.ask(ASK, 1).peak_anonymous is None:
        pytest.skip("no /proc")
    held = []

    def spike(*_):
        if not held:
            held.append(torch.ones(200 << 20, dtype=torch.uint8))
            time.sleep(0.3)
            held[0] = None

    before = usage.anonymous()
    handle = document.model.model.layers[0].register_forward_pre_hook(spike)
    answer = document.ask(ASK, 2)
    handle.remove()
    assert answer.peak_anonymous > before + (150 << 20)
