"""Chats and completions: the tokens are those of the model itself, and every option does what it says."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import longspan
from longspan.bundled import heldout_text
from longspan.documents.conversation import Conversation
from support.serving import KEY, NEEDLE, QUESTION, Served, cached, chat, events, said
from support.token_texts import without_first_space

PROMPTS = [f"{n} things that were found on the way to the sea:" for n in range(17)]


def generated(model, tokenizer, ids, tokens):
    """What `generate` writes after ids, without the token that ends it."""
    ids = torch.as_tensor(ids)[None]
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=0
    )
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("windows", [0.1, 2.5])
def test_greedy_is_generate(served, bundled, book, windows):
    model, tokenizer = bundled
    text = book[: int(1400 * windows)]
    expected = generated(model, tokenizer, tokenizer(text)["input_ids"], 24)
    body = {"model": "tiny", "prompt": text, "max_tokens": 24, "temperature": 0}
    answer = served.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == expected
    assert answer["usage"]["prompt_tokens"] == len(tokenizer(text)["input_ids"])
    by_ids = served.http.post("/v1/completions", json={**body, "prompt": [tokenizer(text)["input_ids"]]}).json()
    assert by_ids["choices"][0]["text"] == expected


def test_greedy_is_generate_among_sixteen_others(served, bundled):
    model, tokenizer = bundled
    expected = [generated(model, tokenizer, tokenizer(prompt)["input_ids"], 8) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        got = list(pool.map(lambda prompt: said(served.ask(prompt, max_tokens=8)), PROMPTS))
    assert got == expected


def test_a_document_answers_as_it_does_alone(served, document):
    alone = served.host.library.get(document).document.ask(QUESTION, 12)
    answer = served.ask(QUESTION, document=document, max_tokens=12)
    assert said(answer) == alone.text and KEY in said(answer)
    usage = answer["usage"]
    assert cached(answer) >= served.document(document)["tokens"]
    assert usage["completion_tokens"] == len(alone.tokens) and answer["choices"][0]["finish_reason"] == "length"


def test_a_conversation_is_that_of_the_library(served, document):
    talk = Conversation(served.host.library.get(document).document)
    questions = [QUESTION, "And where does the road go?", "Who says so?"]
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = served.ask(messages, document=document, max_tokens=10)
        assert said(answer) == talk.say(question, 10).text
        messages.append({"role": "assistant", "content": said(answer)})
    assert cached(answer) > served.document(document)["tokens"] + 10, "the turns before were read again"


def test_a_stream_tells_the_same(served, document):
    body = chat(QUESTION, document=document, max_tokens=12)
    whole = served.ask(QUESTION, document=document, max_tokens=12)
    with served.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and len({c["id"] for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == said(whole)
    assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == [None, "length"]
    assert not any("usage" in chunk for chunk in chunks)

    with_usage = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with served.http.stream("POST", "/v1/chat/completions", json=with_usage) as response:
        *others, last = events(response)
    assert all(chunk["usage"] is None for chunk in others) and last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12

    text = {"model": "tiny", "prompt": "The road", "max_tokens": 9, "temperature": 0}
    alone = served.http.post("/v1/completions", json=text).json()["choices"][0]["text"]
    with served.http.stream("POST", "/v1/completions", json={**text, "stream": True}) as response:
        chunks = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "field"), [("chat/completions", "messages"), ("completions", "prompt"), ("responses", "input")]
)
def test_a_stream_tells_how_far_a_long_prompt_is_read(served, book, path, field):
    """By comments, which keep a connection alive; one for each prefill chunk but the last."""
    text = f"{path}: {book}"
    body = {"model": "tiny", field: [{"role": "user", "content": text}] if field == "messages" else text}
    with served.http.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    shares = [int(line.removeprefix(": reading ").removesuffix("%")) for line in lines if line[0] == ":"]
    assert len(shares) == (len(served.host.tokenizer(text)["input_ids"]) - 1) // served.host.prefill_chunk > 3
    assert shares == sorted(set(shares)) and shares[0] > 0 and shares[-1] < 100
    last = max(n for n, line in enumerate(lines) if line[0] == ":")
    assert not any("delta" in line and '"role"' not in line for line in lines[:last]), (
        "it is read before it is answered"
    )


def test_stop(served, document):
    answer = served.ask(QUESTION, document=document, max_tokens=12, stop="42")
    assert said(answer) == " 71" and answer["choices"][0]["finish_reason"] == "stop"
    assert said(served.ask(QUESTION, document=document, max_tokens=12, stop=["28.", "zzz"])) == " 714"


def test_seed_and_temperature(served):
    def ask(**more):
        return said(served.ask("Once upon a time", max_tokens=10, temperature=1.2, **more))

    assert ask(seed=5) == ask(seed=5)
    assert len({ask(seed=n) for n in range(4)}) > 1
    greedy = said(served.ask("Once upon a time", max_tokens=10))
    assert ask(seed=7, top_p=1e-9) == greedy, "of the likeliest token alone there is nothing to draw"
    assert said(served.ask("Once upon a time", max_tokens=10, temperature=None)) == greedy, "as the model's own config"


def test_logprobs(served, bundled):
    model, tokenizer = bundled
    answer = served.ask("The road", max_tokens=5, logprobs=True, top_logprobs=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == said(answer) and len(content) == 5
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer("The road")["input_ids"]])).logits[0, -1].log_softmax(-1)
    assert content[0]["logprob"] == pytest.approx(float(logits.max()), abs=1e-3)
    for token in content:
        likeliest = token["top_logprobs"]
        assert len(likeliest) == 3 and likeliest[0]["token"] == token["token"], "greedy takes the likeliest"
        assert [x["logprob"] for x in likeliest] == sorted((x["logprob"] for x in likeliest), reverse=True)
        assert sum(math.exp(x["logprob"]) for x in likeliest) <= 1.0001
    body = {"model": "tiny", "prompt": "The road", "max_tokens": 4, "temperature": 0, "logprobs": 2}
    old = served.http.post("/v1/completions", json=body).json()["choices"][0]
    assert "".join(old["logprobs"]["tokens"]) == old["text"]
    assert old["logprobs"]["text_offset"][0] == 0 and len(old["logprobs"]["top_logprobs"][0]) == 2


def test_the_token_that_ends_an_answer_has_no_logprob(served, monkeypatch):
    body = {"max_tokens": 8, "logprobs": True, "top_logprobs": 1}
    whole = served.ask("The road", **body)["choices"][0]["logprobs"]["content"]
    # The model ends nowhere by itself, so that a token of its answer is made the end of answers.
    end = served.host.tokenizer.encode(whole[3]["token"], add_special_tokens=False)[-1]
    monkeypatch.setattr(served.host.model.generation_config, "eos_token_id", end)
    answer = served.ask("The road", **body)
    choice, at = answer["choices"][0], [token["token"] for token in whole].index(whole[3]["token"])
    assert choice["finish_reason"] == "stop" and choice["logprobs"]["content"] == whole[:at]
    assert said(answer) == "".join(token["token"] for token in whole[:at])


@pytest.mark.parametrize("stop", [None, "gain", "ad"])
def test_texts_of_tokens_are_that_of_the_answer(bundled, tmp_path, stop):
    """Also where the tokenizer leaves out the first space of what it decodes, and a stop begins within a token."""
    model, tokenizer = bundled
    served = Served(model, without_first_space(tokenizer), tmp_path / "documents")
    try:
        body = {"model": "tiny", "prompt": "The road", "max_tokens": 24, "temperature": 0, "logprobs": 2, "stop": stop}
        old = served.http.post("/v1/completions", json=body).json()["choices"][0]
        with served.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            streamed = [chunk["choices"][0] for chunk in events(response)]
        content = served.ask("The road", max_tokens=24, logprobs=True, top_logprobs=1, stop=stop)["choices"][0]
    finally:
        served.close()
    text, tokens, offsets = old["text"], old["logprobs"]["tokens"], old["logprobs"]["text_offset"]
    assert " " in text and "".join(tokens) == text
    assert [text[at : at + len(token)] for at, token in zip(offsets, tokens, strict=True)] == tokens
    assert [token for one in streamed for token in one["logprobs"]["tokens"]] == tokens
    assert [at for one in streamed for at in one["logprobs"]["text_offset"]] == offsets
    found = content["logprobs"]["content"]
    assert "".join(one["token"] for one in found) == content["message"]["content"]
    assert b"".join(map(bytes, (one["bytes"] for one in found))) == content["message"]["content"].encode()
    whole = found if stop is None else found[:-1]
    assert all(one["top_logprobs"][0]["token"] == one["token"] for one in whole)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stop_string_cuts_off_has_no_logprobs(served, document, stream):
    body = chat(QUESTION, document=document, max_tokens=8, stop="42", logprobs=True, top_logprobs=1, stream=stream)
    with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        if stream:
            choices = [chunk["choices"][0] for chunk in events(response)]
            content = [token for one in choices if one["logprobs"] for token in one["logprobs"]["content"]]
        else:
            response.read()
            content = response.json()["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == list(" 71")


@pytest.mark.parametrize(("stop", "tokens"), [("42", [" ", "7", "1", "", ""]), ("714", [" ", "", "", ""])])
def test_passages_show_nothing_of_a_stop_string(served, document, stop, tokens):
    answer = served.ask(QUESTION, document=document, max_tokens=12, passages=True, stop=stop)
    found = answer["choices"][0]["passages"]["tokens"]
    assert [token["text"] for token in found] == tokens and said(answer) == "".join(tokens)


def test_passages(served, document, book):
    alone = served.host.library.get(document).document.ask(QUESTION, 6, passages=True)
    answer = served.ask(QUESTION, document=document, max_tokens=6, passages=True)
    assert said(answer) == alone.text
    found = answer["choices"][0]["passages"]
    expected = [(one.first, one.last, round(one.lift, 2)) for one in alone.passages]
    assert [(p["start"], p["end"], p["lift"]) for p in found["answer"]] == expected
    assert all(p["text"] == book[p["start"] : p["end"]] for p in found["answer"]) and KEY in found["answer"][0]["text"]
    assert [token["text"] for token in found["tokens"]] == list(" 71428")
    parts = [[book[p["start"] : p["end"]] for p in token["passages"]] for token in found["tokens"]]
    assert all(KEY in own[0] for own in parts[1:]), "a digit attended to something else"
    assert all(p["lift"] > 1 and 0 < p["share"] < 1 for token in found["tokens"] for p in token["passages"])
    body = chat(QUESTION, document=document, max_tokens=6, passages=True, stream=True)
    with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = events(response)
    assert chunks[-1]["choices"][0]["passages"] == found and "passages" not in chunks[-2]["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_passages_fail_is_whole(served, document, monkeypatch, stream):
    """And says why; the next one has passages."""

    def fails(*_, **__):
        raise RuntimeError("out of memory")

    expected = served.ask(QUESTION, document=document, max_tokens=6)
    with monkeypatch.context() as patched:
        patched.setattr(longspan.Document, "attended", fails)
        if stream:
            body = chat(QUESTION, document=document, max_tokens=6, passages=True, stream=True)
            with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
                chunks = events(response)
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            found = chunks[-1]["choices"][0]
        else:
            answer = served.ask(QUESTION, document=document, max_tokens=6, passages=True)
            text, found = said(answer), answer["choices"][0]
    assert text == said(expected) and found["finish_reason"] == "length"
    assert found["passages"]["error"] and not found["passages"]["answer"]
    again = served.ask(QUESTION, document=document, max_tokens=6, passages=True)["choices"][0]["passages"]
    assert again["answer"] and "error" not in again


@pytest.mark.long
def test_the_passages_of_a_long_text_begin_with_the_answer(bundled):
    """Of a text of 175 windows, whose units are several sentences each."""
    text = heldout_text()[:300_000]
    at = text.index("\n", 150_000)
    answer = longspan.read(*bundled, text[:at] + NEEDLE + text[at:]).ask(QUESTION, 6, passages=True)
    assert answer.text == f" {KEY}" and KEY in answer.passages[0].text


def test_a_chat_that_begins_with_a_document_is_about_it(served, document, book):
    answer = served.ask(f"{book}\n{QUESTION}", max_tokens=6, passages=True)
    assert KEY in said(answer) and answer["choices"][0]["passages"]["answer"]
    assert cached(answer) >= served.document(document)["tokens"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 3}}, "logit_bias"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"temprature": 0.5}, "temprature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": "x"}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"passages": True}, "passages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_named(served, more, field):
    response = served.http.post("/v1/chat/completions", json={**chat("hello"), **more})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"].startswith(field) and error["type"] == "invalid_request_error"
    assert field.partition("[")[0] in error["message"] and "\n" not in error["message"]


def test_what_asks_for_nothing_is_taken(served):
    nothing = {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}}
    nothing |= {"frequency_penalty": 0, "presence_penalty": 0.0, "store": False, "user": "somebody", "stop": None}
    served.ask("hello", max_tokens=1, **nothing)


@pytest.mark.parametrize("count", [31, 32, 33, 70])
def test_an_answer_that_is_not_streamed_is_written_in_parts_and_the_same(served, count):
    body = {"model": "tiny", "prompt": "The road", "max_tokens": count, "temperature": 0, "logprobs": 2}
    whole = served.http.post("/v1/completions", json=body).json()
    with served.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        parts = events(response)
    assert whole["usage"]["completion_tokens"] == count
    assert whole["choices"][0]["text"] == "".join(part["choices"][0]["text"] for part in parts)
    tokens = [part["choices"][0]["logprobs"]["tokens"] for part in parts]
    assert whole["choices"][0]["logprobs"]["tokens"] == [token for some in tokens for token in some]


def test_both_names_of_the_length_are_taken_where_they_agree(served):
    answer = served.ask("hello", max_tokens=2, max_completion_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2


def test_other_names(served):
    response = served.http.post("/v1/chat/completions", json=chat("hello", model="gpt-4"))
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"
    about = served.http.get("/v1/models/tiny").json()
    assert about["longspan"].items() >= {"window": 512, "length": None, "weights": "float32"}.items()
    assert about["longspan"]["method"] == "longheads" and about["max_model_len"] is None
    assert [model["id"] for model in served.http.get("/v1/models").json()["data"]] == ["tiny"]
    unknown = served.http.post("/v1/chat/completions", json=chat("hello", document="doc-" + 24 * "0"))
    assert unknown.status_code == 404 and unknown.json()["error"]["param"] == "document"
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert said(served.ask(system, max_tokens=3)) == said(served.ask("Be brief.\nhello", max_tokens=3))


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("POST", "embeddings", "embeddings"),
        ("POST", "images/generations", "images"),
        ("POST", "audio/transcriptions", "audio"),
        ("GET", "files", "/v1/documents"),
        ("DELETE", "files/file-1", "files"),
        ("POST", "responses/compact", "responses/compact"),
    ],
)
def test_what_is_not_there_is_named(served, method, path, names):
    response = served.http.request(method, f"/v1/{path}")
    error = response.json()["error"]
    assert response.status_code == 404 and error["code"] == "unsupported_endpoint" and names in error["message"]


def test_a_role_that_is_no_text_is_refused(served):
    for role in ([], {}, 3, None):
        response = served.http.post("/v1/chat/completions", json=chat([{"role": role, "content": "x"}]))
        assert response.status_code == 400 and response.json()["error"]["param"] == "messages[0].role"


def test_a_temperature_next_to_nothing_is_greedy(served):
    greedy = said(served.ask("It is", max_tokens=6, temperature=0))
    assert said(served.ask("It is", max_tokens=6, temperature=1e-40)) == greedy
