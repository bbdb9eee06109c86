"""Clients that begin requests and never end them take neither the server's files nor its places away from others."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import threading
import time
from contextlib import ExitStack

import httpx
import pytest

from longspan.serve.security import Guard
from support.serving import chat, wait_for
from support.serving_process import Process

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = HEAD + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


@pytest.fixture
def connect():
    """Opens connections, and sends something by each."""
    with ExitStack() as stack:

        def new(served, data=b"", source="127.0.0.1"):
            address = served.http.base_url.host, served.http.base_url.port
            one = stack.enter_context(socket.create_connection(address, timeout=60, source_address=(source, 0)))
            one.sendall(data)
            return one

        yield new


def refused(one):
    """Whether a connection was closed: with a 503, of which nothing is left where the request was not read."""
    try:
        status, body = answer(one)
    except ConnectionResetError:
        return True
    return status == 503 and body["error"]["code"] == "too_many_connections"


def status(served, path):
    """The status of an answer; None if the server drops the connection, as it may while it is full."""
    try:
        return served.http.get(path).status_code
    except httpx.TransportError:
        return None


def answer(one):
    """The status and the JSON of an answer, after which the server closes the connection."""
    with one.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def health(source="127.0.0.1", **headers):
    given = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{given}\r\n".encode()


@pytest.mark.parametrize(("data", "part"), [(b"", "head"), (HEAD, "head"), (HEAD + b"X", "head"), (BODY, "body")])
def test_a_request_that_does_not_come_in_time(start, connect, quiet, data, part):
    served = start(head_seconds=0.3, body_seconds=0.3)
    status, body = answer(connect(served, data))
    assert status == 408 and body["error"]["message"] == f"the {part} of the request did not come in time"
    wait_for(served.idle)


def test_the_bytes_of_a_body_give_it_time(start, connect, quiet):
    """One that moves on is not late: here for some five times as long as one that does not."""
    served = start(body_seconds=0.5)
    one = connect(
        served, HEAD + b"Content-Type: application/json\r\nContent-Length: 10000\r\nConnection: close\r\n\r\n"
    )
    for _ in range(20):
        time.sleep(0.1)
        one.sendall(b" " * 500)
    assert answer(one)[0] == 400, "an empty body"


@pytest.mark.parametrize("beyond", [1, 200])
def test_half_open_connections_make_room(start, connect, quiet, beyond):
    served = start(max_connections=8)
    connected = [connect(served, HEAD) for _ in range(8 + beyond)]
    assert all(refused(one) for one in connected[:beyond])
    last = connected[-1]
    last.sendall(b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert answer(last)[0] == 400, "it is not closed"


@linux
def test_they_make_room_among_those_of_the_address_that_has_most(start, connect, quiet):
    served = start(max_connections=4)
    other = connect(served, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n")
    many = [connect(served, HEAD, "127.0.0.2") for _ in range(10)]
    assert all(refused(one) for one in many[:7])
    other.sendall(b"Connection: close\r\n\r\n")
    assert answer(other) == (200, {"status": "live"})


def test_over_the_most_requests_others_are_refused_at_once(start, connect, quiet):
    served = start(max_connections=2)
    holding = [connect(served, BODY) for _ in range(2)]

    def full():
        if status(served, "/v1/models") == 503:
            return True
        holding.append(connect(served, BODY))  # one of them may have been closed before its request was read
        return False

    wait_for(full)
    refused = served.http.get("/v1/models")
    assert refused.json()["error"]["code"] == "too_many_connections" and int(refused.headers["Retry-After"]) >= 1
    assert "Content-Security-Policy" in refused.headers
    for path in ("/health", "/health/live", "/health/ready"):
        assert served.http.get(path).status_code == 200
    for one in holding:
        one.close()
    wait_for(lambda: status(served, "/v1/models") == 200)


@linux
def test_one_address_takes_no_place_of_others(start, connect, quiet):
    served = start(max_address_connections=1)
    connect(served, BODY, "127.0.0.2")
    ask = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    wait_for(lambda: answer(connect(served, ask, "127.0.0.2"))[0] == 503)
    assert answer(connect(served, ask))[0] == 200


def test_a_proxy_beside_the_server_says_whose_requests_it_sends(start, connect, quiet):
    served = start(max_address_connections=1)
    ask = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Forwarded-For: {}\r\n\r\n"
    connect(served, BODY.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n"))
    wait_for(lambda: answer(connect(served, ask.format("10.0.0.1").encode()))[0] == 503)
    assert answer(connect(served, ask.format("10.0.0.2").encode()))[0] == 200


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/nothing"])
def test_the_rest_of_a_body_that_nobody_waits_for(start, connect, quiet, path):
    """It is answered, and then counts as a connection that waits for a request."""
    served = start(max_connections=8)
    body = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode()
    connected = [connect(served, body) for _ in range(8)]
    for one in connected:
        assert b"HTTP/1.1 4" in one.recv(10_000)
    for _ in range(8):
        assert connect(served, health()).recv(10_000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: status(served, "/v1/models") == 200)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health/live"])
def test_two_lengths_of_a_body(start, connect, quiet, path):
    """A proxy that believes the other one takes a part of the body for the next request."""
    served = start()
    head = HEAD.replace(b"/v1/chat/completions", path.encode())
    both = head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n"
    status, body = answer(connect(served, both))
    assert status == 400 and body["error"]["code"] == "ambiguous_length"


def test_who_has_an_answer_may_ask_again_at_once():
    """Its place is free as soon as the answer is complete, though its route has not returned."""
    returned = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        await returned.wait()

    guard = Guard(app, api_keys=(), loopback=True, max_body=1, most=1, most_of_address=1, requested=lambda *_: None)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}

    async def status():
        told = []

        async def send(message):
            told.append(message)

        request = asyncio.create_task(guard(scope, None, send))
        while not told or told[-1]["type"] != "http.response.body":
            await asyncio.sleep(0)
        return request, told[0]["status"]

    async def statuses():
        answers = [await status() for _ in range(3)]
        returned.set()
        await asyncio.gather(*(request for request, _ in answers))
        return [number for _, number in answers]

    assert asyncio.run(statuses()) == [200, 200, 200]


def test_who_reads_nothing_is_let_go(start, connect, quiet, monkeypatch):
    monkeypatch.setattr("longspan.serve.connections.READ_SECONDS", 0.3)
    served = start(max_connections=1)
    id = served.add("Some words. " * 100_000, wait=False)
    wait_for(lambda: served.document(id)["status"] != "queued")
    monkeypatch.setattr(served.host, "ready_document", lambda _: type("Read", (), {"text": "x" * 1_000_000}))
    served.http.close()
    for _ in range(3):  # each fills what the system keeps of an answer
        one = connect(served)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(f"GET /v1/documents/{id}/text HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 8)
        wait_for(lambda: _is_reset(one))  # noqa: B023


def _is_reset(one):
    """Whether the other end is gone: it takes nothing more."""
    try:
        for _ in range(2):
            one.sendall(b"x")
            time.sleep(0.01)
    except OSError:
        return True
    return False


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="ulimit")
@pytest.mark.parametrize("data", [b"", HEAD, BODY, HEAD + b"X-Y: z\r\n" * 100], ids=["nothing", "head", "body", "long"])
def test_a_thousand_half_open_requests_leave_the_server_there(tmp_path, connect, data):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2_000), hard), hard))
    served = Process(tmp_path / "documents", files=256)
    took, told = [], []

    def asked(source):
        began = time.monotonic()
        assert answer(connect(served, health(), source)) == (200, {"status": "live"})
        took.append(time.monotonic() - began)

    def probe():
        # Of the flood's own address it could be the oldest that waits: this process holds its GIL between two calls.
        while not told:
            asked("127.0.0.2")

    thread = threading.Thread(target=probe)
    thread.start()
    for _ in range(1_000):
        connect(served, data)
    before = len(took)
    wait_for(lambda: len(took) > before + 10 or not thread.is_alive())
    told.append(True)
    thread.join()
    for _ in range(10):  # of the flood's address, while all of it stands
        asked("127.0.0.1")
    print(f"{len(took)} answers, the slowest after {max(took):.3f} s")
    assert len(took) > before + 10, "an answer did not come"
    if data != BODY:
        body = chat("The road", model="bundled", max_tokens=2)
        assert served.http.post("/v1/chat/completions", json=body).status_code == 200
    code, said = served.end()
    assert code == 0 and not re.search("Traceback|Error", said), said
