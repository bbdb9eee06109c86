"""How messages become ids: the work is that of the text, however many messages there are."""

from __future__ import annotations

import copy
import hashlib
from types import SimpleNamespace

import pytest
import torch
from tokenizers import normalizers

from longspan.bundled import load_bundled
from longspan.documents.layout import find_layout
from longspan.serve import prompts
from longspan.serve.messages import Message
from longspan.serve.prompts import PreviousAnswers, Prompts
from support.token_texts import of_bytes

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    own = copy.deepcopy(load_bundled()[1])
    own.chat_template = CHATML
    return own


@pytest.fixture
def answers():
    return PreviousAnswers()


@pytest.fixture
def prompt(tokenizer, answers):
    """Makes prompts of messages, of the user and the model in turn."""
    made = Prompts(tokenizer, find_layout(tokenizer), list, answers, max_characters=10**6)
    return lambda *texts: made.chat(messages(texts), None)


@pytest.fixture
def encode(prompt):
    """Encodes messages, of the user and the model in turn."""
    return lambda *texts: prompt(*texts).ids


def messages(texts):
    return [Message(("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]


def filled(tokenizer, *texts):
    """The template's own text of messages, of the user and the model in turn."""
    told = [{"role": one.role, "content": one.text} for one in messages(texts)]
    return tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("said", ["hello", "\ue0d01\ue0d1", "\ue0d07\ue0d1 and \ue0d0document\ue0d1"])
def test_a_chat_is_as_the_template_has_it(tokenizer, encode, said):
    """Also where a text has the characters that stand for an answer."""
    texts = [said, "an answer", "and then?"]
    assert tokenizer.decode(encode(*texts)) == filled(tokenizer, *texts)


def test_answers_of_others_have_the_tokens_of_the_template(answers):
    """Also where a tokenizer puts a space before what it encodes, as that of Llama 2."""
    tokenizer = of_bytes()
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.chat_template = CHATML
    made = Prompts(tokenizer, find_layout(tokenizer), list, answers, max_characters=10**6)

    def check(*texts):
        prompt = made.chat(messages(texts), None)
        assert prompt.ids.tolist() == tokenizer(filled(tokenizer, *texts), add_special_tokens=False)["input_ids"]
        return prompt

    texts = ["hello", "an answer", "and then?", "more", "and then?"]
    begun, ids = check(*texts), torch.tensor(tokenizer.convert_tokens_to_ids(list("there")))
    answers.remember(begun.digest, "there", ids)
    goes_on = made.chat(messages([*texts, "there", "and then?"]), None).ids
    assert torch.equal(goes_on[: len(begun.ids) + 5], torch.cat((begun.ids, ids)))


def test_an_answer_is_not_taken_for_one_whose_text_begins_earlier(answers):
    answers.remember(hashlib.sha256(b"ab"), "c", torch.tensor([1]))
    assert answers.ids_of(hashlib.sha256(b"a"), "bc") is None


@pytest.mark.parametrize("content", ["m.content.split('</think>')[-1]", "m.content | trim"])
def test_a_template_that_changes_answers(tokenizer, encode, monkeypatch, content):
    """It takes out what the model thought, or blanks, which placeholders have none of."""
    texts = ["hello", "<think>secret</think>an answer \n", "and then?", "more", "and then?"]
    as_given = filled(tokenizer, *texts)
    monkeypatch.setattr(tokenizer, "chat_template", CHATML.replace("m.content", content))
    assert tokenizer.decode(encode(*texts)) == filled(tokenizer, *texts) != as_given


@pytest.mark.parametrize("content", ["m.content", "m.content | trim"])
def test_an_answer_keeps_the_ids_that_it_had(tokenizer, answers, prompt, encode, monkeypatch, content):
    monkeypatch.setattr(tokenizer, "chat_template", CHATML.replace("m.content", content))
    first = encode("hello")
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(list("there")))  # in other tokens than its text is encoded to
    answers.remember(prompt("hello").digest, "there", ids)
    assert torch.equal(encode("hello", "there", "more")[: len(first) + 5], torch.cat((first, ids)))
    other = encode("hallo", "there", "more")
    assert not torch.equal(other[len(encode("hallo")) :][:5], ids), "it was an answer to something else"


def test_what_came_before_is_hashed_once(tokenizer, encode, monkeypatch):
    hashed = []

    class Counting:
        """A SHA-256 that counts what it takes; an answer's text is hashed in a copy, which counts nothing."""

        def __init__(self, ids):
            self.known = hashlib.sha256(ids)
            hashed.append(len(ids))

        def update(self, text):
            self.known.update(text)
            hashed.append(len(text))

        def copy(self):
            return self.known.copy()

    monkeypatch.setattr(prompts, "hashlib", SimpleNamespace(sha256=Counting))
    texts = ["many words " * 200, *["x"] * 100]
    encode(*texts)
    assert sum(hashed) == len(filled(tokenizer, *texts)) > 1000
