"""What others wrote to speak to servers of OpenAI's API speaks to this one."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys

import openai
import pytest

from support.serving import KEY, QUESTION, said, wait_for

MESSAGES = [{"role": "user", "content": "The road"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": CITY}}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def expected(served):
    """What a greedy answer of eight tokens is."""
    return said(served.ask("The road", max_tokens=8))


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai(client, expected, document):
    options = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(messages=MESSAGES, **options)
    assert whole.choices[0].message.content == expected and whole.usage.completion_tokens == 8
    stream = client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **options
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert client.completions.create(prompt="The road", **options).choices[0].text == expected
    assert [model.id for model in client.models.list()] == ["tiny"]
    asked = client.chat.completions.create(
        messages=[{"role": "user", "content": QUESTION}], extra_body={"document": document, "passages": True}, **options
    )
    assert KEY in asked.choices[0].message.content and asked.choices[0].passages["answer"]
    assert asked.usage.prompt_tokens_details.cached_tokens > 1_000
    with pytest.raises(
        openai.BadRequestError, match="tools cannot be used here: the layout of prompts is plain"
    ) as refused:
        client.chat.completions.create(
            messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}], **options
        )
    assert refused.value.param == "tools"
    with pytest.raises(openai.NotFoundError, match="the model 'other' is not served here"):
        client.chat.completions.create(messages=MESSAGES, model="other")


def test_openai_is_told_nothing_of_the_reading(client, book):
    """Its progress is told by comments, which clients ignore."""
    options = {"model": "tiny", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": book}]}
    streamed = client.chat.completions.create(stream=True, **options)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == client.chat.completions.create(**options).choices[0].message.content
    events = list(client.responses.create(stream=True, model="tiny", max_output_tokens=8, input=book[::-1]))
    assert events[-1].response.usage.input_tokens_details.cached_tokens == 0
    assert [one.sequence_number for one in events] == list(range(len(events)))


def test_openai_asynchronous(served, expected):
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
            whole = client.chat.completions.create(**options)
            stream = await client.chat.completions.create(stream=True, **options)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [(await whole).choices[0].message.content, "".join(parts)]

    assert asyncio.run(ask()) == [expected, expected]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(served, expected):
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0})
    command = ["curl", "-sf", f"{served.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    assert said(json.loads(subprocess.run(command, capture_output=True, check=True).stdout)) == expected


def test_options_of_openai(client, served):
    def ask(**more):
        options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **more}
        return client.chat.completions.create(**options).choices[0]

    whole = ask(n=1, logprobs=True, top_logprobs=2)
    tokens = whole.logprobs.content
    assert "".join(one.token for one in tokens) == whole.message.content and len(tokens[0].top_logprobs) == 2
    cut = ask(stop=[tokens[3].token])
    assert whole.message.content.startswith(cut.message.content) and cut.finish_reason == "stop"
    assert ask(seed=3, temperature=1.5).message == ask(seed=3, temperature=1.5).message
    with pytest.raises(openai.BadRequestError, match="n is not supported"):
        ask(n=2)
    with pytest.raises(openai.NotFoundError, match="embedding"):
        client.embeddings.create(model="tiny", input="x")


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_openai_breaks_off(client, served, kind):
    """The request ends with the stream that its client closes."""
    if kind == "chat":
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=100_000, stream=True)
    else:
        stream = client.responses.create(model="tiny", input="The road", max_output_tokens=100_000, stream=True)
    for _ in range(5):
        next(stream)
    assert not served.idle()
    stream.close()
    wait_for(served.idle)


def test_tools_of_openai(templated, say):
    with openai.OpenAI(base_url=f"{templated.url}/v1", api_key="none", max_retries=0) as client:
        say(CALLED)
        options = {"model": "tiny", "messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL]}
        message = client.chat.completions.create(**options).choices[0].message
        with client.chat.completions.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert streamed.finish_reason == "tool_calls"
        for one in (message, streamed.message):
            function = one.tool_calls[0].function
            assert (function.name, function.arguments) == ("get_weather", '{"city": "Köln"}')
        say("It rains.")
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        options["messages"] += [message.model_dump(), result]
        assert client.chat.completions.create(**options).choices[0].message.content == "It rains."


def package(name):
    """A client of others. It belongs to the extra `clients`, with which CI runs these tests."""
    if os.environ.get("CI"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed (pip install --group clients)")


@pytest.mark.long
def test_a_tool_of_litellm(templated, say):
    litellm = package("litellm")
    say(CALLED)
    options = {"model": "openai/tiny", "messages": MESSAGES, "api_key": "none", "max_tokens": 100, "temperature": 0}
    answer = litellm.completion(**options, tools=[TOOL], api_base=f"{templated.url}/v1").choices[0]
    assert answer.message.tool_calls[0].function.name == "get_weather" and answer.finish_reason == "tool_calls"


@pytest.mark.long
def test_litellm(served, expected):
    litellm = package("litellm")
    options = {
        "model": "openai/tiny", "messages": MESSAGES, "api_base": f"{served.url}/v1", "api_key": "none",
        "max_tokens": 8, "temperature": 0,
    }  # fmt: skip
    assert litellm.completion(**options).choices[0].message.content == expected
    assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **options)) == expected
    del options["messages"], options["max_tokens"]
    answer = litellm.responses(input="The road", max_output_tokens=16, **options)  # it asks for no fewer
    assert answer.output[0].content[0].text.startswith(expected)


@pytest.mark.long
def test_langchain(served, expected):
    chat = package("langchain_openai").ChatOpenAI(
        model="tiny", base_url=f"{served.url}/v1", api_key="none", temperature=0, max_tokens=8, max_retries=0
    )
    answer = chat.invoke("The road")
    assert answer.content == expected and answer.usage_metadata["output_tokens"] == 8
    assert "".join(chunk.content for chunk in chat.stream("The road")) == expected


@pytest.mark.long
@pytest.mark.parametrize("responses", [False, True])
def test_a_tool_of_langchain(templated, say, responses):
    """A function of Python is called by the model, and its result goes back."""
    chat = package("langchain_openai").ChatOpenAI(
        model="tiny", base_url=f"{templated.url}/v1", api_key="none", max_retries=0, use_responses_api=responses
    )
    messages = package("langchain_core.messages")

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    say(CALLED)
    bound, talk = chat.bind_tools([get_weather]), [messages.HumanMessage("Weather?")]
    talk.append(bound.invoke(talk))
    (call,) = talk[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Köln"})
    streamed = list(bound.stream(talk[:1]))
    assert sum(streamed[1:], start=streamed[0]).tool_calls[0]["args"] == call["args"]
    say("It rains.")
    talk.append(messages.ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
    assert bound.invoke(talk).text == "It rains."


@pytest.mark.long
def test_llm(served, expected, tmp_path):
    package("llm")
    model = f"- model_id: longspan\n  model_name: tiny\n  api_base: {served.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    command = [sys.executable, "-m", "llm", "-m", "longspan", "-o", "temperature", "0", "-o", "max_tokens", "8"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for more in ([], ["--no-stream"]):
        ran = subprocess.run([*command, *more, "The road"], capture_output=True, text=True, env=environment)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip() == expected.strip()
