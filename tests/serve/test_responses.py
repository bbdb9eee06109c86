"""``/v1/responses``: the answers are those of the chats that they stand for, told in OpenAI's items and events."""

from __future__ import annotations

import json

import openai
import pytest

from longspan.serve import responses
from support.serving import KEY, QUESTION, chat, said

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
BODY = {"model": "tiny", "input": "The road", "max_output_tokens": 8, "temperature": 0}


def post(server, **more):
    response = server.http.post("/v1/responses", json={**BODY, **more})
    assert response.status_code == 200, response.text
    return response.json()


def stream(server, **more):
    """The events, each of which bears its own name and number."""
    with server.http.stream("POST", "/v1/responses", json={**BODY, **more, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def without_ids(response):
    """What two responses to one request have in common."""
    items = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": items, "usage": None}


def test_an_answer_is_that_of_a_chat(served):
    answer = post(served)
    expected = served.ask("The road", max_tokens=8)
    assert text_of(answer) == said(expected) and answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"} and answer["completed_at"] is None
    assert answer["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]
    assert answer["usage"]["output_tokens"] == 8 and answer["temperature"] == 0 and answer["error"] is None
    told = served.ask([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}], max_tokens=3)
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert text_of(post(served, instructions="Be brief.", input=parts, max_output_tokens=3)) == said(told)


def test_the_events_of_a_text(served):
    events = stream(served)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * len(deltas),
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    last = events[-1]["response"]
    assert len(deltas) > 1 and "".join(deltas) == text_of(last) == events[-4]["text"]
    assert without_ids(last) == without_ids(post(served))
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    assert {event.get("item_id", last["output"][0]["id"]) for event in events} == {last["output"][0]["id"]}


def test_the_events_of_a_call(templated, say):
    say(f"Let me see.{CALLED}")
    more = {"tools": [TOOL], "max_output_tokens": None}
    events = stream(templated, **more)
    kinds = [event["type"].removeprefix("response.") for event in events if "output_text" not in event["type"]]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    text, call = events[-1]["response"]["output"]
    assert text["content"][0]["text"] == "Let me see." and text["status"] == call["status"] == "completed"
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"city": "Köln"}')
    assert without_ids(post(templated, **more)) == without_ids(events[-1]["response"])


def test_a_response_goes_on_from_an_earlier_one(templated, say):
    """And reads nothing of that again; instructions hold for one response alone."""
    say(f"Let me see.{CALLED}")
    first = post(templated, input="Weather?", tools=[TOOL], max_output_tokens=None, instructions="Be brief.")
    say("It rains.")
    results = [{"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "rain"}]
    second = post(templated, input=results, tools=[TOOL], previous_response_id=first["id"], max_output_tokens=None)
    assert second["previous_response_id"] == first["id"] and text_of(second) == "It rains."
    say("Yes.")
    third = post(templated, input="Sure?", tools=[TOOL], previous_response_id=second["id"], max_output_tokens=None)
    usage = third["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= second["usage"]["input_tokens"]
    replayed = [{"role": "user", "content": "Weather?"}, *first["output"], *results, *second["output"]]
    again = post(templated, input=[*replayed, {"role": "user", "content": "Sure?"}], tools=[TOOL])
    assert again["usage"]["input_tokens"] == usage["input_tokens"]


def test_a_document_stays_that_of_a_conversation(served, document):
    first = post(served, input=QUESTION, document=document)
    assert KEY in text_of(first) and first["usage"]["input_tokens_details"]["cached_tokens"] > 1_000
    second = post(served, input="And where?", previous_response_id=first["id"])
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > first["usage"]["input_tokens"]


def test_responses_are_kept_and_deleted(served, monkeypatch):
    first = post(served)
    assert served.http.get(f"/v1/responses/{first['id']}").json() == first
    assert served.http.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
    unkept = post(served, store=False)
    for id in (first["id"], unkept["id"], "x"):
        for method in ("GET", "DELETE"):
            response = served.http.request(method, f"/v1/responses/{id}")
            assert response.status_code == 404 and response.json()["error"]["code"] == "response_not_found"
        response = served.http.post("/v1/responses", json={**BODY, "previous_response_id": id})
        assert response.status_code == 400 and response.json()["error"]["param"] == "previous_response_id"
    monkeypatch.setattr(responses, "_KEPT", 3 * responses._EACH)
    several = [post(served)["id"] for _ in range(4)]
    found = [served.http.get(f"/v1/responses/{id}").status_code for id in several]
    assert found[0] == 404 and found[-1] == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_that_fails_says_so(templated, say, streamed):
    say("no call")
    more = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": None}
    if streamed:
        last = stream(templated, **more)[-1]
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] == "server_error" and last["response"]["error"]["message"]
    else:
        response = templated.http.post("/v1/responses", json={**BODY, **more})
        assert response.status_code == 422 and response.json()["error"]["code"] == "no_tool_call"


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,x"}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": ["x"], "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input[0].arguments"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"input": []}, "input"),
        ({"input": "\ud800"}, "input[0].content"),
        ({"input": "x" * 20_000_000}, "input"),
        ({"instructions": "\ud800"}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"conversation": "x"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL]}, "tools"),
        ({"seed": 3}, "seed"),
        ({"document": "x"}, "document"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_named(served, more, field):
    response = served.http.post("/v1/responses", content=json.dumps({**BODY, **more}).encode(),
                                headers={"Content-Type": "application/json"})  # fmt: skip
    error = response.json()["error"]
    assert response.status_code in (400, 404) and error["param"] == field and error["message"]


def test_what_asks_for_nothing_is_taken(served):
    post(served, input=[{"type": None, "role": "user", "content": "x", "id": None, "status": "completed"}])
    post(served, truncation="disabled", include=[], reasoning={}, text={"format": {"type": "text"}}, tools=[],
         tool_choice="auto", parallel_tool_calls=True, metadata={"a": "b"}, user="x", background=False)  # fmt: skip


def test_openai(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.responses.create(**BODY)
        assert whole.output_text == said(served.ask("The road", max_tokens=8)) and whole.usage.output_tokens == 8
        events = list(client.responses.create(**BODY, stream=True))
        assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == whole.output_text
        assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text
        assert client.responses.retrieve(whole.id).output_text == whole.output_text
        client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(whole.id)
        with pytest.raises(openai.BadRequestError, match="input_image"):
            client.responses.create(**{**BODY, "input": [{"role": "user", "content": [IMAGE]}]})


def test_a_chat_names_an_image(served):
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    response = served.http.post("/v1/chat/completions", json=chat([{"role": "user", "content": image}]))
    assert response.status_code == 400 and "image_url" in response.json()["error"]["message"]
