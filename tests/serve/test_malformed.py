"""Requests that nobody should send: none makes the server fail, and none leaves a traceback in its log."""

from __future__ import annotations

import itertools
import json
import random
from contextlib import suppress

import pytest

from support.serving import chat

ROUTES = [("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "responses", "documents")]
ROUTES += [("GET", "/v1/documents/{}"), ("PATCH", "/v1/documents/{}"), ("DELETE", "/v1/documents/{}")]
ROUTES += [("GET", "/v1/responses/{}"), ("DELETE", "/v1/responses/{}"), ("POST", "/v1/files/{}")]
ROUTES += [("GET", "/v1/documents/{}/events"), ("GET", "/v1/documents/{}/text"), ("GET", "/v1/models/{}")]
IDS = ["x", "doc-" + "0" * 24, "%2e%2e%2f", "%00", "\u202e", "a" * 5_000, "doc-" + "0" * 24 + "%0a"]
BODIES = [
    b"", b"{", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"{}" * 1_000, b"[" * 100_000, b'{"model": NaN}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "tiny", "prompt": "\\udfff", "max_tokens": 1}', b'{"model": "tiny", "max_tokens": 1e400}',
    b"--x\r\nContent-Disposition: form-data", b"--x\r\n\r\n--x--", b"\x00" * 100,
]  # fmt: skip
TYPES = ["application/json", "multipart/form-data; boundary=x", "multipart/form-data", "text/plain", "", "x" * 3_000]
VALUES = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "x",
    "\x00",
    [],
    [[]],
    {},
    {"type": "x"},
    [None],
    [2**70],
    [[-1]],
    [["x"]],
]
FIELDS = ["model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"]
FIELDS += ["tool_choice", "parallel_tool_calls", "input", "instructions", "previous_response_id", "metadata", "store"]
FIELDS += ["stream", "stream_options", "logprobs", "top_logprobs", "document", "passages", "n", "tools", "user", "\x00"]


def send(served, method, path, **request):
    response = served.http.request(method, served.url + path, **request)
    assert response.status_code < 500, (method, path, request, response.text)
    if response.status_code >= 400 and method != "HEAD":
        error = response.json()["error"]
        assert isinstance(error["message"], str) and "Traceback" not in error["message"]
    return response


def test_bodies_that_are_none(served, quiet):
    for (method, path), body, kind in itertools.product(ROUTES[:4], BODIES, TYPES):
        assert send(served, method, path, content=body, headers={"Content-Type": kind}).status_code == 400


def test_a_body_that_is_no_json_names_the_place(served, quiet):
    body = '{"model": nonsense}'
    response = send(served, "POST", "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] is None
    assert error["message"].startswith("the body is not JSON") and error["message"].endswith("at character 10")


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain"])
def test_a_json_body_without_its_type_says_what_is_missing(served, kind):
    body, headers = json.dumps(chat("x")), {"Content-Type": kind}
    response = send(served, "POST", "/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400 and "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat/completions", {"stop": 5}, "stop"),
        ("chat/completions", {"stop": ["a", None]}, "stop"),
        ("chat/completions", {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ("chat/completions", {"messages": ["x"]}, "messages.0"),
        ("completions", {"prompt": {"a": 1}}, "prompt"),
        ("completions", {"prompt": [1.5]}, "prompt"),
    ],
)
def test_an_error_names_a_field_of_the_request(served, path, body, field):
    error = send(served, "POST", f"/v1/{path}", json={**chat("x"), "prompt": "x", "stream": True, **body}).json()[
        "error"
    ]
    assert error["param"] == field and error["message"].startswith(f"{field}: ")


def test_ids_that_are_none(served, quiet):
    for (method, path), id in itertools.product(ROUTES[4:], IDS):
        body = {"json": {"name": "x"}} if method == "PATCH" else {}
        assert send(served, method, path.format(id), **body).status_code in (400, 404, 405)
    for method, path in itertools.product(
        ["PUT", "OPTIONS", "TRACE", "HEAD", "BREW"], ["/v1/models", "/", "/v1/documents"]
    ):
        send(served, method, path)


def test_fields_that_cannot_be(served, quiet):
    bodies = {"chat/completions": chat("x", max_tokens=1)}
    bodies |= {"completions": {"model": "tiny", "prompt": "x", "max_tokens": 1}}
    bodies |= {"responses": {"model": "tiny", "input": "x", "max_output_tokens": 1}}
    for (path, body), field, value in itertools.product(bodies.items(), FIELDS, VALUES):
        text = json.dumps({**body, field: value, "stream": value if field == "stream" else False})
        send(served, "POST", f"/v1/{path}", content=text, headers={"Content-Type": "application/json"})


FUNCTION = {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def with_one_spoiled(whole, value):
    """Each part of an object in the place of which stands a value."""
    for key in whole if isinstance(whole, dict) else range(len(whole)):
        yield {**whole, key: value} if isinstance(whole, dict) else [*whole[:key], value, *whole[key + 1 :]]
        if isinstance(whole[key], dict | list):
            for one in with_one_spoiled(whole[key], value):
                yield {**whole, key: one} if isinstance(whole, dict) else [*whole[:key], one, *whole[key + 1 :]]


@pytest.mark.long
def test_functions_and_calls_that_cannot_be(templated, quiet):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [CALL]},
    ]
    messages.append({"role": "tool", "tool_call_id": "c", "content": "x"})
    named = {"type": "function", "function": {"name": "f"}}
    talk = {"messages": messages, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": named}
    items = [{"role": "user", "content": "x"}, ITEM, {"type": "function_call_output", "call_id": "c", "output": "x"}]
    response = {
        "input": items,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", "name": "f"},
    }
    bodies = {"chat/completions": {**talk, "max_tokens": 1}, "responses": {**response, "max_output_tokens": 1}}
    for path, whole in bodies.items():
        assert send(templated, "POST", f"/v1/{path}", json={"model": "tiny", **whole}).status_code == 200
        for body in itertools.chain.from_iterable(with_one_spoiled(whole, value) for value in VALUES):
            text = json.dumps({"model": "tiny", **body})
            send(templated, "POST", f"/v1/{path}", content=text, headers={"Content-Type": "application/json"})


def test_bytes_at_random(served, quiet):
    draw = random.Random(0)
    good = json.dumps(chat("x" * 20, max_tokens=1, stop=["y"], seed=3)).encode()
    for _ in range(100):
        spoiled = bytearray(good)
        for _ in range(draw.randrange(1, 4)):
            spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
        send(
            served, "POST", "/v1/chat/completions", content=bytes(spoiled), headers={"Content-Type": "application/json"}
        )


@pytest.mark.long
def test_what_schemathesis_makes_of_the_schema(served, quiet):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable

    schema = schemathesis.openapi.from_dict(served.http.get("/openapi.json").json())
    sent = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue  # a stream, whose ids are those of the test above

        @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
        def each(case):
            nonlocal sent
            response = case.call(base_url=served.url, timeout=60)
            assert response.status_code < 500, response.text
            sent += 1

        if operation.body or operation.path_parameters or operation.query:
            with suppress(Unsatisfiable):  # where nothing can be wrong but what no client can send
                each()
    assert sent >= 200
