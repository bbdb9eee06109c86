"""A server in a thread of this process, on a port of its own, and ways to speak to it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from longspan.serve.host import Host
from longspan.serve.run import Server
from longspan.serve.settings import ServerSettings

KEY = "71428"
NEEDLE = f"\nThe pass key is {KEY}. Remember it. {KEY} is the pass key.\n"
QUESTION = "What is the pass key? The pass key is"


class Served:
    """A running server.

    Attributes:
        url: where it listens. http: a client of it. host: what it consists of.
    """

    def __init__(self, model: Any, tokenizer: Any, documents: Path, **settings: Any) -> None:
        options = {
            "model": "tiny",
            "source": "bundled",
            "port": 0,
            "prefill_chunk": 256,
            "max_new_tokens": 16,
            **settings,
        }
        self.host = Host(model, tokenizer, ServerSettings(documents=documents, **options))
        self.host.start()
        self._server = Server(self.host)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started)
        self.url = self._server.address
        keys = self.host.settings.api_keys
        self.headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        self.http = httpx.Client(base_url=self.url, timeout=120, headers=self.headers)

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(30)
        self.host.stop()
        assert not self._thread.is_alive()

    def add(self, text: str | bytes, name: str = "book.txt", *, wait: bool = True) -> str:
        """A document's id, once it is read."""
        data = text.encode() if isinstance(text, str) else text
        response = self.http.post("/v1/documents", files={"file": (name, data)})
        assert response.status_code == 202, response.text
        id = str(response.json()["id"])
        if wait:
            wait_for(lambda: self.document(id)["status"] in ("ready", "failed"))
        return id

    def document(self, id: str) -> dict[str, Any]:
        response = self.http.get(f"/v1/documents/{id}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def ask(self, content: str | list[dict[str, str]], **more: Any) -> dict[str, Any]:
        """A whole chat answer."""
        response = self.http.post("/v1/chat/completions", json=chat(content, **more))
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def idle(self) -> bool:
        """Whether nobody is being answered."""
        return not self.host.engine.running and not self.host.engine.waiting


def chat(content: str | list[dict[str, str]], **more: Any) -> dict[str, Any]:
    """The body of a chat request, greedy."""
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return {"model": "tiny", "messages": messages, "temperature": 0, **more}


def said(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    """Tokens of its prompt that were not read again."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream up to ``[DONE]``, which has to be there."""
    data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(text) for text in data[:-1]]


def wait_for(condition: Any, seconds: float = 120) -> None:
    """Until it holds; a test that hangs fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)
