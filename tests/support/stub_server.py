"""A server that keeps the page's contract and does what a test tells it to, such as to stop half way."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PART = 240  # characters of a part that heads look at


def _open() -> Event:
    event = Event()
    event.set()
    return event


@dataclass
class Stub:
    """What the server holds and how it behaves.

    Attributes:
        reading, writing: closed (``clear()``), they hold a reading or an answer half way.
        refusals: (part of the path, status, error's message) of the next requests to be refused, each once.
        key: what requests must bring; "" for none. answer: what is answered; None: words about the question.
        breaks: end the connection in the middle of an answer. slow: ``writing`` holds an answer before its first token.
        asked: the bodies of all requests for answers.
        model, template: the model's name, and whether it has a chat template.
        whole, chooses: up to how many tokens an answer sees all, None for any number, and whether it chooses of more.
        lift: by which all lifts are multiplied.
    """

    documents: dict[str, dict] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    reading: Event = field(default_factory=_open)
    writing: Event = field(default_factory=_open)
    refusals: list[tuple[str, int, str]] = field(default_factory=list)
    key: str = ""
    answer: str | None = None
    breaks: bool = False
    slow: bool = False
    asked: list[dict] = field(default_factory=list)
    model: str = "stub"
    whole: int | None = 512
    chooses: bool = True
    template: bool = True
    lift: float = 1.0

    def add(self, name: str, text: str, status: str = "ready") -> str:
        identifier = f"doc-{len(self.documents) + 1:024x}"
        tokens = max(1, len(text) // 4)
        one = {"id": identifier, "object": "document", "name": name, "status": status, "bytes": len(text.encode())}
        one |= {"created_at": 1_700_000_000 + len(self.documents), "characters": len(text), "tokens": tokens}
        one |= {"tokens_read": tokens if status == "ready" else 0, "error": None}
        one |= {"tokens_per_second": None, "seconds_left": None}
        self.documents[identifier], self.texts[identifier] = one, text
        return identifier

    def steps(self, identifier: str):
        """The document as its reading goes on."""
        one = self.documents[identifier]
        for share in (0.25, 0.5, 0.75):
            one |= {"status": "reading", "tokens_read": int(share * one["tokens"])}
            one |= {"tokens_per_second": 5000.0, "seconds_left": 40.0 * (1 - share)}
            yield one
            if share == 0.5:
                self.reading.wait(20)
        one |= {"status": "ready", "tokens_read": one["tokens"], "tokens_per_second": None, "seconds_left": None}
        yield one

    def tokens(self, question: str) -> list[str]:
        words = f"You asked “{question}”, and the text says this much about it: not a word."
        return re.findall(r"\S+\s*", words if self.answer is None else self.answer)

    def looked(self, identifier: str, tokens: list[str]) -> dict:
        """Passages that depend on nothing but text and answer: most at a quarter and at nine tenths of the text."""
        text, chance = self.texts[identifier], random.Random(1)
        parts = max(1, len(text) // PART)
        near = [int(0.25 * parts), int(0.9 * parts), *(chance.randrange(parts) for _ in range(7))]
        each = [
            {near[1]: 20.0} if n == 3 else {near[0]: 12.0, near[1]: 7.0, near[2 + n % 7]: 1.5 + n % 5}
            for n in range(len(tokens))
        ]
        every: dict[int, float] = {}
        for step in each:
            for part, lift in step.items():
                every[part] = max(every.get(part, 0.0), lift if part != near[0] else 25.0)
        whole = dict(sorted(every.items(), key=lambda item: -item[1])[:4])

        def passages(lifts: dict[int, float], text_too: bool) -> list[dict]:
            found = []
            for part, lift in sorted(lifts.items(), key=lambda item: -item[1]):
                start, end = part * PART, min(len(text), (part + 1) * PART)
                one = {"start": start, "end": end, "lift": self.lift * lift, "share": lift / 1000}
                found.append(one | ({"text": text[start:end]} if text_too else {}))
            return found

        steps = [{"text": t, "passages": passages(v, False)} for t, v in zip(tokens, each, strict=True)]
        return {"answer": passages(whole, True), "tokens": steps}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def log_message(self, *_):
        pass

    def _send(self, status: int, body: bytes, kind: str, **more: str) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": CSP, **more}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, value, status: int = 200, **more: str) -> None:
        self._send(status, json.dumps(value).encode(), "application/json", **more)

    def _error(self, status: int, message: str) -> None:
        more = {"Retry-After": "3"} if status == 429 else {}
        self._json({"error": {"message": message, "type": "error", "param": None, "code": None}}, status, **more)

    def _events(self, values) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for value in values:
            data = value if isinstance(value, str) else json.dumps(value)
            self.wfile.write(f": reading 42%\r\n\r\ndata: {data}\r\n\r\n".encode())
            time.sleep(0.01)

    def _any(self) -> None:
        stub, url = self.stub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not url.path.startswith("/v1/"):
            return self._page(url.path)
        if stub.key and self.headers.get("Authorization") != f"Bearer {stub.key}":
            return self._error(401, "wrong key")
        for refusal in stub.refusals:
            if refusal[0] in url.path:
                stub.refusals.remove(refusal)
                return self._error(*refusal[1:])
        parts = url.path.split("/")[2:]
        if parts == ["models"]:
            own = {"method": "longheads", "window": 512, "version": "0", "chat": stub.template}
            own |= {"whole": stub.whole, "chooses": stub.chooses}
            return self._json({"object": "list", "data": [{"id": stub.model, "object": "model", "longspan": own}]})
        if parts == ["chat", "completions"]:
            return self._chat(json.loads(body))
        if parts == ["documents"]:
            if self.command == "POST":
                return self._json(stub.documents[self._upload(body)], 202)
            return self._json({"object": "list", "data": list(stub.documents.values())})
        return self._document(parts[1], parts[2:], url.query, body)

    def _page(self, path: str) -> None:
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        found = files("longspan.serve") / "page" / name
        if "/" in name or not found.is_file():
            return self._error(404, "not found")
        return self._send(200, found.read_bytes(), f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8")

    def _upload(self, body: bytes) -> str:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        (part,) = BytesParser().parsebytes(head + body).get_payload()
        text = part.get_payload(decode=True).decode()
        return self.stub.add(part.get_filename(), text, "reading")

    def _document(self, identifier: str, more: list[str], query: str, body: bytes) -> None:
        stub = self.stub
        if identifier not in stub.documents:
            return self._error(404, f"no document {identifier}")
        one = stub.documents[identifier]
        if more == ["events"]:
            return self._events(stub.steps(identifier))
        if more == ["text"]:
            start, end = (int(parse_qs(query)[name][0]) for name in ("start", "end"))
            text = stub.texts[identifier]
            end = min(end, len(text))
            return self._json(
                {"id": identifier, "start": start, "end": end, "characters": len(text), "text": text[start:end]}
            )
        if more == ["search"]:
            (words,) = parse_qs(query)["words"]
            places = [{"start": m.start(), "end": m.end()} for m in re.finditer(words, stub.texts[identifier], re.I)]
            return self._json({"id": identifier, "words": words, "found": len(places), "places": places[:1000]})
        if self.command == "DELETE":
            del stub.documents[identifier]
            return self._json({"id": identifier, "object": "document", "deleted": True})
        if self.command == "PATCH":
            one["name"] = json.loads(body)["name"]
        return self._json(one)

    def _chat(self, body: dict) -> None:
        self.stub.asked.append(body)
        tokens = self.stub.tokens(body["messages"][-1]["content"])
        self._events(self._chunks(body, tokens))

    def _chunks(self, body: dict, tokens: list[str]):
        def chunk(delta: dict, **more):
            choice = {"index": 0, "delta": delta, "finish_reason": None} | more
            return {"id": "x", "object": "chat.completion.chunk", "model": "stub", "choices": [choice]}

        yield chunk({"role": "assistant", "content": ""})
        for n, token in enumerate(tokens):
            if n == (0 if self.stub.slow else len(tokens) // 2):
                self.stub.writing.wait(20)
                if self.stub.breaks:
                    return
            yield chunk({"content": token})
        more = {"passages": self.stub.looked(body["document"], tokens)} if body.get("passages") else {}
        yield chunk({}, finish_reason="stop", **more)
        asked = sum(len(message["content"]) for message in body["messages"]) // 4 + 1000
        usage = {"prompt_tokens": asked, "completion_tokens": len(tokens), "total_tokens": asked + len(tokens)}
        usage["prompt_tokens_details"] = {"cached_tokens": 1000}
        yield chunk({}) | {"choices": [], "usage": usage}
        yield "[DONE]"

    do_GET = do_POST = do_PATCH = do_DELETE = _any


def serve(stub: Stub, port: int = 0) -> ThreadingHTTPServer:
    """Serve on loopback, in threads, until ``shutdown()``."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"stub": stub}))
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
