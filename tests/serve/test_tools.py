"""Functions in a prompt and their calls in an answer."""

from __future__ import annotations

import json

import pytest

from longspan.serve.errors import ApiError
from longspan.serve.messages import read_messages
from longspan.serve.tools import CallForm, read_tools
from support.serving import Served, chat, events
from support.templates import CHATML, TOOLS, with_template

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": CITY}}
OTHER = {"type": "function", "function": {"name": "get_time"}}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
FORCED = '"city": "Köln"}}\n</tool_call>'
# As Gemma's: delimiters of its own, some of them special tokens, and values by their types.
OWN = {
    "start_anchor": "<|assistant|>\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<s>call:(?P<name>\w+)",
            "close": "<pad>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"content": "text"},
    },
}


@pytest.fixture
def ask(templated):
    """The choice of a chat with functions, whole or of all chunks of a stream."""

    def asked(*, stream=False, messages="Weather?", **more):
        body = chat(messages, tools=[TOOL, OTHER], stream=stream, **more)
        if not stream:
            response = templated.http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            return response.json()["choices"][0]
        with templated.http.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = [chunk["choices"][0] for chunk in events(response)]
        deltas = [chunk["delta"] for chunk in chunks]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [call.pop("index") for call in calls] == list(range(len(calls)))
        text = "".join(delta.get("content") or "" for delta in deltas)
        message = {"content": text or None} | ({"tool_calls": calls} if calls else {"content": text})
        return {"message": message, "finish_reason": chunks[-1]["finish_reason"]}

    return asked


def called(choice):
    return [(one["function"]["name"], one["function"]["arguments"]) for one in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before", ["", "Let me see."])
def test_calls(ask, say, stream, before):
    say(f"{before}{CALLED}\n{CALLED}")
    choice = ask(stream=stream)
    assert called(choice) == [("get_weather", '{"city": "Köln"}')] * 2 and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == (before or None)
    ids = [one["id"] for one in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and {one["type"] for one in choice["message"]["tool_calls"]} == {"function"}
    assert called(ask(stream=stream, parallel_tool_calls=False)) == [("get_weather", '{"city": "Köln"}')]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "No call.",
        "a < b",
        "<tool",
        "<tool_call>no JSON</tool_call> and more",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        'a\n\n<tool_call>{"name": "f", "arguments": "not JSON"}</tool_call> b\n',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        'So: <tool_call>{"function": 3}</tool_call> and <tool_call>{"function": [1]}</tool_call>',
        f'<tool_call>{{"name": "{"f" * 300}", "arguments": {{}}}}</tool_call>',
    ],
)
def test_what_is_no_call_is_text(ask, say, stream, text):
    say(text)
    choice = ask(stream=stream)
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_its_length_cuts_off_is_text(ask, say, stream):
    say(CALLED)
    choice = ask(stream=stream, max_tokens=20)
    assert choice["finish_reason"] == "length" and CALLED.startswith(choice["message"]["content"])
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called(ask, say, templated, stream):
    say(FORCED)
    choice = ask(stream=stream, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    assert called(choice) == [("get_weather", '{"city": "Köln"}')] and choice["finish_reason"] == "tool_calls"
    say(f'get_weather", "arguments": {{{FORCED}')
    assert called(ask(stream=stream, tool_choice="required")) == called(choice)


@pytest.mark.parametrize("answer", ["no call", 'other", "arguments": {}}</tool_call>'])
def test_an_answer_without_the_call_that_is_required_is_an_error(templated, say, answer):
    say(answer)
    body = chat("Weather?", tools=[TOOL, OTHER], tool_choice="required")
    whole = templated.http.post("/v1/chat/completions", json=body)
    assert whole.status_code == 422 and whole.json()["error"]["code"] == "no_tool_call"
    with templated.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "no_tool_call"


def test_functions_calls_and_results_are_given_to_the_template(templated, say, tool_tokenizer):
    say("It rains.")
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
    ]
    body = chat(messages, tools=[TOOL])
    answer = templated.http.post("/v1/chat/completions", json=body).json()
    parsed = [dict(message) for message in messages]
    parsed[1] |= {"content": ""}
    parsed[1]["tool_calls"] = [{**call, "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}]
    parsed[2] |= {"content": "rain"}
    text = tool_tokenizer.apply_chat_template(parsed, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert CALLED in text and "Weather." in text
    assert answer["usage"]["prompt_tokens"] == len(tool_tokenizer(text, add_special_tokens=False)["input_ids"])
    assert answer["choices"][0]["message"]["content"] == "It rains."
    without = templated.http.post("/v1/chat/completions", json=body | {"tool_choice": "none"}).json()
    assert without["usage"]["prompt_tokens"] < answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_form_of_a_tokenizer_is_read(tool_tokenizer, size):
    own = with_template(tool_tokenizer, TOOLS)
    own.response_template = OWN
    tools = read_tools([TOOL], None, None, nested=True)
    text = 'Let me see.<s>call:get_weather{"city": "Köln"}<pad><s>call:get_time{}<pad>'
    reader, shown, calls = CallForm(own).reader(tools, "", "<|user|>\nx</s>\n<|assistant|>\n"), "", []
    for at in range(0, len(text), size):
        new, found = reader.feed(text[at : at + size])
        shown, calls = shown + new, calls + found
    new, found = reader.end()
    assert shown + new == "Let me see." and found == []
    assert [(one.name, one.arguments) for one in calls] == [("get_weather", '{"city": "Köln"}'), ("get_time", "{}")]


def test_special_tokens_of_a_form_are_read(bundled, tool_tokenizer, say, tmp_path):
    own = with_template(tool_tokenizer, TOOLS)
    own.response_template = OWN
    say('<s>call:get_weather{"city": "Köln"}<pad>')
    server = Served(bundled[0], own, tmp_path / "documents", max_new_tokens=100)
    try:
        choice = server.http.post("/v1/chat/completions", json=chat("x", tools=[TOOL])).json()["choices"][0]
    finally:
        server.close()
    assert called(choice) == [("get_weather", '{"city": "Köln"}')]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "has no chat template"),
        (CHATML, "takes no tools"),
        (TOOLS.replace("<tool_call>", "<call>"), "another form of calls"),
        (TOOLS.replace("{% if tools %}", "{{ raise_exception('no tools') }}"), "takes no tools"),
    ],
)
def test_a_template_without_functions_is_refused(tool_tokenizer, template, says):
    assert says in CallForm(with_template(tool_tokenizer, template)).refusal
    assert CallForm(tool_tokenizer).refusal is None


def test_a_refusal_names_the_template(bundled, tmp_path, book):
    model, tokenizer = bundled
    server = Served(model, with_template(tokenizer, CHATML), tmp_path / "documents")
    messages = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    try:
        for body in (chat("x", tools=[TOOL]), chat(messages)):
            response = server.http.post("/v1/chat/completions", json=body)
            assert response.status_code == 400 and "chat template" in response.json()["error"]["message"]
        assert server.ask("x", tools=[TOOL], tool_choice="none", max_tokens=1)
    finally:
        server.close()


def test_a_document_has_no_place_for_functions(templated, book):
    response = templated.http.post("/v1/chat/completions", json=chat("x", tools=[TOOL], document=templated.add(book)))
    assert response.status_code == 400 and "a document" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "\ud800"}}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_cannot_be_held_is_named(more, field):
    with pytest.raises(ApiError) as refused:
        read_tools(more.get("tools"), more.get("tool_choice"), None, nested=True)
    assert refused.value.param == field and field in str(refused.value.detail)


def test_names_and_ids_count(templated):
    """Towards the longest prompt, and of what is kept."""
    call = {"id": "c" * 200, "function": {"name": "f" * 200, "arguments": "{}"}}
    told = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c" * 200, "content": "x"}]
    assert sum(map(len, read_messages(told))) >= 603
    assert sum(map(len, read_messages([{"role": "user", "content": ""}] * 100))) >= 100
    long = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f" * 300, "arguments": "{}"}}]}
    response = templated.http.post("/v1/chat/completions", json=chat([long, {"role": "user", "content": "x"}]))
    assert response.status_code == 400 and response.json()["error"]["param"].endswith("function.name")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "x"}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
         "messages[0].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [3]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": 3}, "messages[0].tool_calls"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [3]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_calls_that_are_none_are_named(templated, message, field):
    response = templated.http.post("/v1/chat/completions", json=chat([message, {"role": "user", "content": "x"}]))
    assert response.status_code == 400 and response.json()["error"]["param"] == field
