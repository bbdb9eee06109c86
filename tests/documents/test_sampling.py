"""Answers that are sampled, and those that a stop string ends."""

from __future__ import annotations

import pytest
import torch

from longspan.documents.conversation import Conversation
from longspan.errors import DocumentError

ASK = "Who is the narrator?"
SAMPLED = {"do_sample": True, "temperature": 1.5, "top_k": 0}


def test_a_seed_repeats_an_answer_and_leaves_the_generator_as_it_was(document):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (document.ask(ASK, 12, seed=seed, **SAMPLED) for seed in (3, 3, 4))
    assert first.tokens == again.tokens != other.tokens
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "x", True])
def test_what_is_no_seed(document, seed):
    with pytest.raises(DocumentError, match="seed must be an integer"):
        document.ask(ASK, 2, seed=seed)


@pytest.mark.parametrize("stops", [[""], "", ["a", 3]])
def test_what_is_no_stop_string(document, stops):
    if stops == "":
        assert document.ask(ASK, 2, stop_strings=stops).tokens == document.ask(ASK, 2).tokens
        return
    with pytest.raises(DocumentError, match="stop_strings must be texts"):
        document.ask(ASK, 2, stop_strings=stops)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("by", ["options", "config"])
def test_a_stop_string_ends_an_answer_before_it(document, streamed, by):
    whole = document.ask(ASK, 24)
    assert whole.finish == "length" and len(whole.tokens) == 24
    stop, parts = whole.text[9:12], []
    options = {"stop_strings": ["never in it", stop]}
    if by == "config":
        document.model.generation_config.update(**options)
        options = {}
    cut = document.ask(ASK, 24, stream=parts.append if streamed else None, **options)
    assert cut.finish == "stop" and cut.text == whole.text[: whole.text.index(stop)]
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and len(cut.tokens) < 24
    assert not streamed or "".join(parts) == cut.text


def test_an_end_token_ends_it(document):
    whole = document.ask(ASK, 6)
    assert document.ask(ASK, 6, eos_token_id=whole.tokens[3]).finish == "stop"
    assert document.ask(ASK, 4, eos_token_id=whole.tokens[3]).finish == "stop", "the last token of its room"


def test_a_stop_string_is_no_part_of_a_conversation(document):
    talk = Conversation(document)
    stop = document.ask(ASK, 24).text[9:12]
    answer = talk.say(ASK, 24, stop_strings=[stop])
    assert answer.finish == "stop"
    (turn,) = talk.turns
    assert document.tokenizer.decode(turn.answered.tolist()) == answer.text
    assert talk.say("And then?", 3).finish == "length"


def test_the_passages_of_a_sampled_answer_are_its_own(document):
    talk = Conversation(document)
    torch.manual_seed(1)
    answer = talk.say(ASK, 8, **SAMPLED)
    torch.manual_seed(1)
    expected = document.ask(ASK, 8, passages=True, **SAMPLED)
    assert answer.tokens == expected.tokens != document.ask(ASK, 8).tokens
    assert talk.passages() == expected.passages
