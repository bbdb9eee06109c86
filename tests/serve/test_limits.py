"""Nobody gets in, and nobody sends too much."""

from __future__ import annotations

import re
import threading

import pytest

from longspan.errors import LongspanError
from longspan.serve import host
from longspan.serve.settings import ServerSettings
from support.serving import QUESTION, chat, wait_for

KEY, OTHER = "a-key-of-its-own", "another-key"


@pytest.fixture(scope="module")
def locked(bundled, tmp_path_factory):
    """A server with a key and narrow limits."""
    from support.serving import Served

    limits = {"api_keys": (KEY, OTHER), "max_body": 20_000, "max_length": 300, "max_running": 1, "max_queue": 1}
    server = Served(*bundled, tmp_path_factory.mktemp("documents"), **limits)
    yield server
    server.close()


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xe9"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/documents", "/metrics", "/openapi.json", "/nothing"])
def test_without_the_key_nobody_is_answered(locked, given, path):
    headers = {"Authorization": "" if given is None else given.encode("latin-1")}
    response = locked.http.get(path, headers=headers)
    assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert locked.http.get("/v1/models").status_code == 200


def test_any_of_the_keys_opens(locked):
    for key in (KEY, OTHER):
        assert locked.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_health_and_the_page_need_no_key(locked):
    bare = {"Authorization": ""}
    assert locked.http.get("/health/live", headers=bare).status_code == 200
    assert locked.http.get("/health/ready", headers=bare).status_code == 200
    assert locked.http.get("/health", headers=bare).json() == {"status": "ready"}
    assert locked.http.get("/", headers=bare).status_code != 401
    assert locked.http.get("/page/../metrics", headers=bare).status_code == 401
    assert locked.http.get("/page/nothing.js", headers=bare).status_code == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_other_addresses_demand_a_key(tmp_path, host):
    with pytest.raises(LongspanError, match="--api-key"):
        ServerSettings(model="x", source="x", documents=tmp_path, host=host)
    assert not ServerSettings(model="x", source="x", documents=tmp_path, host=host, api_keys=("k",)).loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_does_not(tmp_path, host):
    assert ServerSettings(model="x", source="x", documents=tmp_path, host=host).loopback


@pytest.mark.parametrize("key", ["", "line\nbreak", "clé"])
def test_keys_that_no_header_can_have(tmp_path, key):
    with pytest.raises(LongspanError, match="printable"):
        ServerSettings(model="x", source="x", documents=tmp_path, api_keys=(key,))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1", "1.2.3.4"])
def test_a_name_that_leads_here_is_refused(locked, host):
    response = locked.http.get("/v1/models", headers={"Host": host})
    assert response.status_code in (400, 403)
    assert locked.http.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://[", "file://"])
def test_other_origins_are_refused(locked, origin):
    assert locked.http.post("/v1/documents", headers={"Origin": origin}).status_code == 403
    assert locked.http.get("/v1/models", headers={"Origin": locked.url}).status_code == 200


def test_large_bodies(locked):
    long = chat("x" * 30_000)
    response = locked.http.post("/v1/chat/completions", json=long)
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
    prefill_chunks = (b"x" * 1_000 for _ in range(50))  # in chunks, which do not say how many they are
    headers = {"Content-Type": "application/json"}
    assert locked.http.post("/v1/chat/completions", content=prefill_chunks, headers=headers).status_code == 413
    response = locked.http.post("/v1/documents", files={"file": ("a.txt", b"x" * 30_000)})
    assert response.status_code == 413
    assert locked.http.get("/v1/documents").json()["data"] == []


def test_long_prompts(locked):
    response = locked.http.post("/v1/chat/completions", json=chat("walk " * 400))
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded" and "300" in error["message"]
    response = locked.http.post("/v1/chat/completions", json=chat("walk", max_tokens=299))
    assert response.status_code == 400 and "300" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_a_prompt_whose_cache_has_no_room_is_refused_before_it_is_read(served, monkeypatch, path):
    monkeypatch.setattr(host, "_LARGE", 0)
    monkeypatch.setattr(host, "free_memory", lambda device: 10_000)
    monkeypatch.setattr(type(served.host.caches), "nbytes", 0)
    before = served.host.engine.prefill_chunks
    field = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path]
    text = "The road was long. " * 200
    given = [{"role": "user", "content": text}] if field == "messages" else text
    response = served.http.post(f"/v1/{path}", json={"model": "tiny", field: given})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field and error["code"] == "context_length_exceeded"
    assert "--kv-tier disk" in error["message"] and served.host.engine.prefill_chunks == before
    monkeypatch.setattr(host, "free_memory", lambda device: None)  # of a system that does not say
    assert served.http.post(f"/v1/{path}", json={"model": "tiny", field: given}).status_code == 200


@pytest.mark.parametrize("limit", [{"max_length": 300}, {"max_prompt": 5_000}])
def test_prompts_are_bounded_before_they_are_encoded(start, monkeypatch, limit):
    served = start(**limit)
    for name in ("__call__", "encode"):
        monkeypatch.setattr(type(served.host.tokenizer), name, lambda *_, **__: pytest.fail("it was encoded"))
    text = "walk " * 2_000_000
    sent = [("chat/completions", chat(text), "messages"), ("completions", {"model": "tiny", "prompt": text}, "prompt")]
    for path, body, field in sent:
        response = served.http.post(f"/v1/{path}", json=body)
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == field
        assert re.search("10,000,00[0-9] characters", error["message"]) and "/v1/documents" in error["message"]
        assert "max_prompt" not in limit or "at most 5,000" in error["message"]


def test_no_prompt_within_the_length_is_refused_by_its_characters(start, bundled):
    """A prompt of the longest tokens of the vocabulary, as many as are possible."""
    _, tokenizer = bundled
    longest = max(tokenizer.get_vocab().items(), key=lambda item: len(item[0]))[1]
    text = tokenizer.decode([longest] * 200)
    length = len(tokenizer(text)["input_ids"])
    assert length <= 201
    served = start(max_length=length + 1)
    assert served.ask(text, max_tokens=1)["usage"]["prompt_tokens"] == length


class Blocking:
    """A job that runs until it is told to end."""

    cancelled = long = False

    def __init__(self):
        self.end = threading.Event()

    def step(self):
        self.end.wait(60)
        return False

    def close(self):
        pass


def test_a_full_queue(start):
    served, running = start(max_running=1, max_queue=1), Blocking()
    served.host.engine.submit(running)
    wait_for(lambda: served.host.engine.running)
    with served.http.stream("POST", "/v1/chat/completions", json=chat("y", max_tokens=5_000, stream=True)):
        wait_for(lambda: served.host.engine.waiting)
        refused = served.http.post("/v1/chat/completions", json=chat("z"))
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
    wait_for(lambda: "longspan_clients_gone_total 1.0" in served.http.get("/metrics").text)
    running.end.set()
    wait_for(served.idle)
    served.ask("z", max_tokens=2)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nothing", "/health/live", "/v1/documents/doc-x", "/metrics"])
@pytest.mark.parametrize("key", [True, False])
def test_no_answer_goes_without_headers(locked, path, key):
    headers = locked.http.get(path, headers={} if key else {"Authorization": ""}).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer" and "server" not in headers


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/none", "/page/none", "/metrics"])
def test_head_is_get_without_a_body(locked, path):
    """Probes and ``curl -I`` ask so."""
    whole, head = locked.http.get(path), locked.http.head(path)
    assert whole.content and head.status_code == whole.status_code and head.content == b""
    assert head.headers["Content-Type"] == whole.headers["Content-Type"] and "X-Frame-Options" in head.headers
    closed = {"Authorization": ""}
    assert locked.http.head(path, headers=closed).status_code == locked.http.get(path, headers=closed).status_code


def test_head_of_a_stream_ends_before_the_stream(start):
    """Where it did not, the next request on its connection waited until the document was read."""
    served, running = start(max_running=1), Blocking()
    served.host.engine.submit(running)
    wait_for(lambda: served.host.engine.running)
    id = served.add("Some words. " * 100, wait=False)
    head = served.http.head(f"/v1/documents/{id}/events")
    assert head.status_code == 200 and head.headers["Content-Type"].startswith("text/event-stream")
    assert served.http.get(f"/v1/documents/{id}", timeout=20).json()["status"] == "queued"
    running.end.set()
    wait_for(served.idle)


@pytest.mark.parametrize(
    "id", ["..", "%2e%2e", "..%2f..%2fetc", "doc-../../x", "doc-" + "g" * 24, "doc-" + "0" * 23, "%00"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_ids_are_no_paths(locked, id, method):
    body = {"json": {"name": "x"}} if method == "PATCH" else {}
    response = locked.http.request(method, f"{locked.url}/v1/documents/{id}", **body)
    assert response.status_code in (404, 405)
    asked = locked.http.post("/v1/chat/completions", json=chat(QUESTION, document=id))
    assert asked.status_code == 404


def test_a_request_that_failed_leaves_the_others_alone(start, monkeypatch, caplog):
    served = start()
    monkeypatch.setattr(served.host.caches, "take", lambda *_: 1 / 0)
    response = served.http.post("/v1/chat/completions", json=chat("x"))
    assert response.status_code == 500 and "division" not in response.text, "nothing of the inside is told"
    assert "a request failed" in caplog.text
    monkeypatch.undo()
    served.ask("x", max_tokens=2)


def test_a_document_that_leaves_no_room_for_a_question_is_not_read_to_its_end(start, book, tmp_path):
    served = start(max_length=300, prefill_chunk=64, documents=tmp_path / "kept")
    id = served.add(book)
    found = served.document(id)
    assert found["status"] == "failed" and found["tokens_read"] == 64 < 300 < found["tokens"]
    assert "prompt and answer may have at most 300 together" in found["error"]
    response = served.http.post("/v1/chat/completions", json=chat(QUESTION, document=id))
    assert response.status_code == 409 and "at most 300" in response.json()["error"]["message"]
    served.close()
    again = start(documents=tmp_path / "kept")
    wait_for(lambda: again.document(id)["status"] in ("ready", "failed"))
    assert again.document(id)["status"] == "ready", "of another server with more room it is read"
