"""What others wrote to speak to servers of OpenAI's API speaks to this one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys

import openai
import pytest

from support.serving import KEY, QUESTION, said

MESSAGES = [{"role": "user", "content": "The road"}]


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


@pytest.mark.long
def test_litellm(served, expected):
    litellm = pytest.importorskip("litellm")
    options = {
        "model": "openai/tiny", "messages": MESSAGES, "api_base": f"{served.url}/v1", "api_key": "none",
        "max_tokens": 8, "temperature": 0,
    }  # fmt: skip
    assert litellm.completion(**options).choices[0].message.content == expected
    assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **options)) == expected


@pytest.mark.long
def test_langchain(served, expected):
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(
        model="tiny", base_url=f"{served.url}/v1", api_key="none", temperature=0, max_tokens=8, max_retries=0
    )
    answer = chat.invoke("The road")
    assert answer.content == expected and answer.usage_metadata["output_tokens"] == 8
    assert "".join(chunk.content for chunk in chat.stream("The road")) == expected


@pytest.mark.long
def test_llm(served, expected, tmp_path):
    pytest.importorskip("llm")
    model = f"- model_id: longspan\n  model_name: tiny\n  api_base: {served.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    command = [sys.executable, "-m", "llm", "-m", "longspan", "-o", "temperature", "0", "-o", "max_tokens", "8"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for more in ([], ["--no-stream"]):
        ran = subprocess.run([*command, *more, "The road"], capture_output=True, text=True, env=environment)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip() == expected.strip()
