"""The server of a soak, and its clients: what they ask for, and which answers are right."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from longspan.bundled import heldout_text

QUESTIONS = ("What is the pass key? The pass key is", "Who spoke first?", "\nThen the road")
TURNS = ("What then?", "And after that?")
TEXTS, LONGEST, TOKENS, DOCUMENTS = 12, 9_000, 10, 2  # characters of a text, tokens of an answer, documents of a client
TIE = 2e-3  # nats between the likeliest token and the next, below which rounding may choose
PATIENCE, START = 300, 240  # seconds
FREE = 50  # looks at the disk that are kept, ten a second
SHORT = 16 * 2**20  # bytes free below which a disk has no room for a text of some length
CODE = "import longspan.cli; longspan.cli.main()"


class Down(Exception):
    """The server was killed, or is not yet back."""


class Server:
    """`longspan serve` on one folder, through its lives."""

    def __init__(self, place: Path, log: Path, method: str) -> None:
        self.place, self.log, self.method = place, log, method
        self.lives, self.url, self.process = 0, "", None
        self.up = threading.Event()
        self.free: deque[int] = deque(maxlen=FREE)

    def start(self) -> None:
        self.lives += 1
        caches = self.place / "kv"
        caches.mkdir(exist_ok=True)
        options = ["--documents", self.place / "documents", "--kv-dir", caches, "--memory", "4M", "--kv-disk", "8M"]
        options += ["--port", "0", "--prefill-chunk", "256", "--method", self.method]
        at, environment = self.log.stat().st_size if self.log.exists() else 0, {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, "serve", "bundled", *map(str, options)], stdout=log, stderr=log,
                env={**environment, "TMPDIR": str(self.place)},
            )  # fmt: skip
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r" at (http://\S+)", self.log.read_bytes()[at:].decode(errors="replace"))
            with suppress(httpx.HTTPError):
                if found and httpx.get(f"{found[1]}/health/ready", timeout=10).status_code == 200:
                    self.url = found[1]
                    self.up.set()
                    return
            time.sleep(0.2)
        raise SystemExit(f"the server did not start; see {self.log}")

    @property
    def lowest(self) -> int:
        """Bytes that were free on its disk at the worst moment of the last seconds; the run notes them."""
        return min(self.free, default=shutil.disk_usage(self.place).free)

    def kill(self) -> None:
        self.up.clear()
        self.process.kill()
        self.process.wait()


class Tally:
    """What happened, and what should not have."""

    def __init__(self) -> None:
        self.counts, self.wrong, self.lock = Counter[str](), list[dict[str, Any]](), threading.Lock()

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def failed(self, kind: str, **what: Any) -> None:
        with self.lock:
            self.counts[kind] += 1
            self.wrong.append({"kind": kind, "at": time.strftime("%H:%M:%S"), **what})


def texts() -> list[tuple[str, bytes]]:
    """Names and contents: stories with a pass key in each, one of three as HTML."""
    book, found = heldout_text(), []
    for n in range(TEXTS):
        size = 1_500 + (LONGEST - 1_500) * n // (TEXTS - 1)
        begin = (n * 4_099) % (len(book) - size)
        text, key = book[begin : begin + size], 10_007 + 7_001 * n
        middle = text.index("\n", size // 3)
        text = f"{text[:middle]}\nThe pass key is {key}. Remember it. {key} is the pass key.\n{text[middle:]}"
        if n % 3 == 2:
            page = "<p>" + text.replace("\n", "</p><p>") + "</p>"
            found.append((f"{n}.html", page.encode()))
        else:
            found.append((f"{n}.txt", text.encode()))
    return found


def body(content: list[dict[str, str]], document: str | None, **more: Any) -> dict[str, Any]:
    about = {} if document is None else {"document": document}
    return {
        "model": "bundled", "messages": content, "temperature": 0, "max_tokens": TOKENS, "logprobs": True,
        "top_logprobs": 2, **about, **more,
    }  # fmt: skip


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Client:
    """One client with documents of its own, which does as its random numbers say."""

    def __init__(self, server: Server, tally: Tally, expected: dict[str, Any], number: int) -> None:
        self.server, self.tally, self.expected = server, tally, expected
        self.draw, self.texts, self.number = random.Random(number), texts(), number
        self.documents: dict[str, int] = {}  # the text of each
        self.deleting: set[str] = set()  # asked to be deleted, and the server was killed before it said so

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        if not self.server.up.wait(PATIENCE):
            raise Down
        life = self.server.lives
        try:
            with httpx.Client(base_url=self.server.url, timeout=PATIENCE) as http:
                response = http.request(method, path, **more)
        except httpx.HTTPError as error:
            if self.server.up.is_set() and self.server.lives == life and self.server.process.poll() is None:
                time.sleep(1)  # it may be about to be killed
                if self.server.up.is_set() and self.server.lives == life:
                    self.tally.failed("broken", request=f"{method} {path}", error=repr(error))
            raise Down from error
        self.tally.count("requests")
        return response

    def ok(self, response: httpx.Response, *codes: int) -> bool:
        """Whether it is as it should be. A busy server may refuse, and one whose disk is nearly full."""
        if response.status_code in codes:
            return True
        if response.status_code in (429, 503):
            self.tally.count("busy")
        elif response.status_code == 507 and self.server.lowest < SHORT:
            self.tally.count("no room")
        else:
            self.tally.failed("unexpected", status=response.status_code, said=response.text[:300])
        return False

    def step(self) -> None:
        choice = self.draw.random()
        if not self.documents or (choice < 0.25 and len(self.documents) < DOCUMENTS):
            self.add(self.draw.randrange(TEXTS))
        elif choice < 0.6:
            self.ask(self.draw.choice(list(self.documents)), self.draw.randrange(len(QUESTIONS)))
        elif choice < 0.75:
            self.talk(self.draw.randrange(TEXTS))
        elif choice < 0.9:
            self.hang_up(self.draw.choice(list(self.documents)))
        else:
            self.delete(self.draw.choice(list(self.documents)))

    def add(self, text: int) -> None:
        name, content = self.texts[text]
        response = self.send("POST", "/v1/documents", files={"file": (f"{self.number}-{name}", content)})
        if self.ok(response, 202):
            self.documents[response.json()["id"]] = text
            self.tally.count("documents added")

    def ready(self, id: str) -> bool:
        """Wait until it is read; one that the full disk stopped is read after the next start."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            response = self.send("GET", f"/v1/documents/{id}")
            if response.status_code == 404:
                self.tally.failed("lost", id=id)
                self.documents.pop(id, None)
                return False
            if not self.ok(response, 200):
                return False
            said = response.json()
            if said["status"] == "failed":
                if "No space" not in said["error"] and "room" not in said["error"]:
                    self.tally.failed("lost", id=id, error=said["error"])
                self.tally.count("waits for room")
                time.sleep(1)
                return False
            if said["status"] == "ready":
                return True
            time.sleep(0.3)
        self.tally.failed("unexpected", said=f"{id} was not read within {PATIENCE} s")
        return False

    def ask(self, id: str, question: int) -> None:
        text = self.documents[id]
        if self.ready(id):
            response = self.send("POST", "/v1/chat/completions", json=body([user(QUESTIONS[question])], id))
            if self.ok(response, 200):
                self.compare(f"{text}/{question}", response.json())

    def talk(self, text: int) -> None:
        """A conversation about no document, which reuses what its turns before read."""
        messages = [user(self.expected[f"talk {text}"][0]["prompt"])]
        for turn, known in enumerate(self.expected[f"talk {text}"]):
            response = self.send("POST", "/v1/chat/completions", json=body(messages, None))
            if not self.ok(response, 200):
                return
            self.compare(f"talk {text}", response.json(), turn)
            if turn < len(TURNS):
                messages += [{"role": "assistant", "content": known["said"]}, user(TURNS[turn])]

    def compare(self, key: str, answer: dict[str, Any], turn: int = 0) -> None:
        known, found = self.expected[key][turn], of(answer)
        self.tally.count("answers")
        if found["said"] == known["said"]:
            return
        at = next((n for n, (a, b) in enumerate(zip(known["tokens"], found["tokens"], strict=False)) if a != b), None)
        tie = at is not None and known["gaps"][at] < TIE
        self.tally.failed("tie" if tie else "wrong", of=key, turn=turn, said=found["said"], expected=known["said"])

    def hang_up(self, id: str) -> None:
        """A stream that is broken off after some pieces, or before the first."""
        if not self.server.up.wait(PATIENCE):
            return
        pieces = self.draw.randrange(6)
        with suppress(httpx.HTTPError), httpx.Client(base_url=self.server.url, timeout=PATIENCE) as http:
            request = body([user(self.draw.choice(QUESTIONS))], id, stream=True, max_tokens=200)
            if self.draw.random() < 0.3:
                http.timeout = httpx.Timeout(0.05)  # before the head of the response
            with http.stream("POST", "/v1/chat/completions", json=request) as response:
                for n, _ in enumerate(response.iter_lines()):
                    if n >= pieces:
                        break
        self.tally.count("hung up")

    def delete(self, id: str) -> None:
        self.deleting.add(id)
        text = self.documents.pop(id)
        response = self.send("DELETE", f"/v1/documents/{id}")
        if self.ok(response, 200):
            self.deleting.discard(id)
            self.tally.count("documents deleted")
            if self.send("GET", f"/v1/documents/{id}").status_code != 404:
                self.tally.failed("came back", id=id)
        else:
            self.documents[id] = text

    def run(self, end: float) -> None:
        while time.monotonic() < end:
            with suppress(Down):
                self.step()


def of(answer: dict[str, Any]) -> dict[str, Any]:
    choice = answer["choices"][0]
    parts = choice["logprobs"]["content"]
    gaps = [one["top_logprobs"][0]["logprob"] - one["top_logprobs"][1]["logprob"] for one in parts]
    return {"said": choice["message"]["content"], "tokens": [one["token"] for one in parts], "gaps": gaps}


def undisturbed(server: Server) -> dict[str, Any]:
    """What one client after the other is told."""
    found: dict[str, Any] = {}
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:

        def answer(messages: list[dict[str, str]], document: str | None) -> dict[str, Any]:
            response = http.post("/v1/chat/completions", json=body(messages, document))
            response.raise_for_status()
            return of(response.json())

        for n, (name, content) in enumerate(texts()):
            id = http.post("/v1/documents", files={"file": (name, content)}).json()["id"]
            while http.get(f"/v1/documents/{id}").json()["status"] != "ready":
                time.sleep(0.1)
            for k, question in enumerate(QUESTIONS):
                found[f"{n}/{k}"] = [answer([user(question)], id)]
            http.delete(f"/v1/documents/{id}").raise_for_status()
            prompt = heldout_text()[n * 500 : n * 500 + 700 + 50 * n]
            messages, told = [user(prompt)], []
            for turn in (*TURNS, None):
                told.append({"prompt": prompt, **answer(messages, None)})
                messages += [{"role": "assistant", "content": told[-1]["said"]}, user(turn or "")]
            found[f"talk {n}"] = told
    return found
