"""Layouts that put an instruction around the text inside the chat template, and system prompts."""

from __future__ import annotations

import pytest

import longspan
from longspan.documents.conversation import Conversation
from longspan.documents.layout import NAMED, find_layout
from longspan.errors import DocumentError
from support.templates import CHATML, with_template

TEXT, QUESTION, SYSTEM = "It was a dark night. " * 30, "Who came?", "You are terse."


@pytest.mark.parametrize("system", ["", SYSTEM])
@pytest.mark.parametrize("name", NAMED)
def test_the_prompt_reads_as_the_template_has_it(tokenizer, fresh, tmp_path, name, system):
    own, around = with_template(tokenizer, CHATML), NAMED[name]
    document = longspan.read(fresh(), own, TEXT, layout=name, system=system, out=tmp_path / "a")
    messages = [{"role": "user", "content": f"{around.head}{TEXT}{around.joint}{around.asked}{QUESTION}"}]
    messages = [{"role": "system", "content": system}, *messages] if system else messages
    fill = {"tokenize": False, "add_generation_prompt": True}
    assert own.decode(document.prompt(QUESTION)) == own.apply_chat_template(messages, **fill)
    talk = Conversation(document)
    answer = talk.say(QUESTION, 3)
    talk.say("And then?", 2)
    messages += [
        {"role": "assistant", "content": answer.text}, {"role": "user", "content": f"{around.asked}And then?"},
    ]  # fmt: skip
    asked = own.decode(talk.ids()[: -len(talk.turns[-1].answered)])
    assert asked == own.apply_chat_template(messages, **fill)
    opened = longspan.Document.open(tmp_path / "a", document.model, own)
    assert (opened.layout.name, opened.layout.system) == (name, system)
    with pytest.raises(DocumentError, match="already holds a document of another"):
        longspan.read(fresh(), own, TEXT, layout=name, system=f"{system}x", out=tmp_path / "a")


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML,
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
        # before the last question, as Mistral's, and after it
        "{% for m in messages if m.role != 'system' %}{% if loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content }}\n{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}",
    ],
)
def test_a_template_without_a_place_for_a_system_prompt(tokenizer, template):
    own = with_template(tokenizer, template)
    with pytest.raises(DocumentError, match="no place for a system prompt"):
        find_layout(own, "chat", SYSTEM)
    assert find_layout(own, "chat").system == ""


@pytest.mark.parametrize("wanted", ["plain", "{document}\n{question}", "auto"])
def test_a_layout_without_a_template_has_no_system_prompt(tokenizer, wanted):
    with pytest.raises(DocumentError, match="a system prompt has its place in a chat template"):
        find_layout(with_template(tokenizer, None), wanted, SYSTEM)
