"""Hours of `longspan serve` under clients that hang up, kills and a full disk: nothing lost, wrong or growing.

    mkdir -p /tmp/soak && mount -t tmpfs -o size=64m none /tmp/soak
    nice -n 10 python benchmarks/soak.py --place /tmp/soak --out DIR --minutes 240

Clients add texts, ask, talk, hang up and delete at random. The server is killed by SIGKILL every ``--kill`` minutes and
started on the same folder, and twice a file fills its disk. The last ``--calm`` minutes have neither, so that what one
process keeps shows. Answers are compared with those that an undisturbed server gave one after the other; one that
differs where two tokens are equally likely, up to rounding, counts as a tie.

`DIR/samples.csv` has memory, files and threads every ten seconds, `DIR/soak.json` the figures. `--plot FILE DIR` draws
them. The exit status is 1 if something was lost or wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from longspan.bundled import heldout_text

QUESTIONS = ("What is the pass key? The pass key is", "Who spoke first?", "\nThen the road")
TURNS = ("What then?", "And after that?")
TEXTS, LONGEST, TOKENS, DOCUMENTS = 12, 9_000, 10, 2  # characters of a text, tokens of an answer, documents of a client
TIE = 2e-3  # nats between the likeliest token and the next, below which rounding may choose
EVERY, FULL_SECONDS, PATIENCE, START = 10, 45, 300, 240  # seconds
CODE = "import longspan.cli; longspan.cli.main()"
FIELDS = ("minute", "life", "rss_mib", "anonymous_mib", "files", "threads", "mappings", "disk_mib", "requests")


class Down(Exception):
    """The server was killed, or is not yet back."""


class Server:
    """`longspan serve` on one folder, through its lives."""

    def __init__(self, place: Path, log: Path, method: str) -> None:
        self.place, self.log, self.method = place, log, method
        self.lives, self.url, self.process = 0, "", None
        self.up = threading.Event()

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
        """Whether it is as it should be; a disk without room may refuse, also where it fills by itself."""
        if response.status_code in codes:
            return True
        busy = response.status_code in (429, 503)
        if busy or response.status_code == 507:
            self.tally.count("busy" if busy else "no room")
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


def sample(server: Server, tally: Tally, began: float, out: Path, end: float) -> None:
    with out.open("w", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        while time.monotonic() < end:
            with suppress(OSError, StopIteration):
                folder = Path(f"/proc/{server.process.pid}")
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                rows.writerow({
                    "minute": round((time.monotonic() - began) / 60, 2), "life": server.lives,
                    "rss_mib": int(status["VmRSS"].split()[0]) // 1024,
                    "anonymous_mib": int(status["RssAnon"].split()[0]) // 1024,
                    "files": len(list((folder / "fd").iterdir())), "threads": int(status["Threads"]),
                    "mappings": (folder / "maps").read_text().count("\n"),
                    "disk_mib": shutil.disk_usage(server.place).used >> 20, "requests": tally.counts["requests"],
                })  # fmt: skip
                file.flush()
            time.sleep(EVERY)


def fill(place: Path, tally: Tally) -> None:
    """Leave no room on the disk for a while."""
    tally.count("full disks")
    ballast = place / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    time.sleep(FULL_SECONDS)
    ballast.unlink()


def check_documents(server: Server, clients: list[Client], tally: Tally) -> None:
    """Everything that was taken in and not deleted is there, and is read again where the disk was full."""
    there = {one["id"] for one in httpx.get(f"{server.url}/v1/documents", timeout=PATIENCE).json()["data"]}
    for client in clients:
        for id in set(client.documents) - there:
            tally.failed("lost", id=id, life=server.lives)
    known = set().union(*(set(client.documents) | client.deleting for client in clients))
    tally.counts["more than known"] = max(tally.counts["more than known"], len(there - known))


def soak(options: argparse.Namespace) -> int:
    out, place = options.out, options.place
    if shutil.disk_usage(place).free > 2**30:
        raise SystemExit(f"{place} has more than 1 GiB free, and the script fills it; mount a small disk there")
    out.mkdir(parents=True, exist_ok=True)
    server, tally = Server(place, out / "server.log", options.method), Tally()
    server.start()
    expected = undisturbed(server)
    print(f"{len(expected)} answers of an undisturbed server, {sum(map(len, expected.values()))} turns", flush=True)
    began = time.monotonic()
    end, calm = began + 60 * options.minutes, began + 60 * (options.minutes - options.calm)
    clients = [Client(server, tally, expected, n) for n in range(options.clients)]
    threads = [threading.Thread(target=one.run, args=(end,), daemon=True) for one in clients]
    threads.append(threading.Thread(target=sample, args=(server, tally, began, out / "samples.csv", end), daemon=True))
    for thread in threads:
        thread.start()
    full = [began + (calm - began) * share for share in (0.35, 0.75)]
    killed = began
    while (now := time.monotonic()) < end:
        time.sleep(1)
        if full and now > full[0]:
            full.pop(0)
            fill(place, tally)
        elif now - killed > 60 * options.kill if now < calm else killed < calm:  # also once where the calm begins
            server.kill()
            tally.count("kills")
            server.start()
            check_documents(server, clients, tally)
            killed = time.monotonic()
        elif server.process.poll() is not None:
            tally.failed("ended", code=server.process.returncode)
            server.up.clear()
            server.start()
        (out / "soak.json").write_text(
            json.dumps({"counts": tally.counts, "wrong": tally.wrong[:200]}, indent=1) + "\n"
        )
    for thread in threads:
        thread.join(PATIENCE)
    check_documents(server, clients, tally)
    server.kill()
    bad = {kind: tally.counts[kind] for kind in ("lost", "wrong", "came back", "unexpected", "broken", "ended")}
    (out / "soak.json").write_text(json.dumps({"minutes": options.minutes, "clients": options.clients, "bad": bad,
        "counts": tally.counts, "wrong": tally.wrong[:200]}, indent=1) + "\n")  # fmt: skip
    print(json.dumps({"bad": bad, "counts": tally.counts}))
    return int(any(bad.values()))


def plot(out: Path, picture: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with (out / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    minutes = [float(row["minute"]) for row in rows]
    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(8, 7), layout="constrained")
    shown = ("rss_mib", "memory, MiB"), ("files", "open files"), ("threads", "threads"), ("disk_mib", "disk, MiB")
    for axis, (name, label) in zip(axes, shown, strict=True):
        axis.plot(minutes, [float(row[name]) for row in rows], linewidth=0.8)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        for before, after in pairwise(rows):
            if before["life"] != after["life"]:
                axis.axvline(float(after["minute"]), color="0.8", linewidth=0.8, zorder=0)
    axes[-1].set_xlabel("minutes (lines: the server was killed)")
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, help="a folder on a small disk of its own")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--calm", type=float, default=0, help="minutes at the end without kills and full disks")
    parser.add_argument("--kill", type=float, default=10, help="minutes between kills")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--plot", type=Path, help="draw what --out has, and end")
    options = parser.parse_args()
    if options.plot is not None:
        plot(options.out, options.plot)
        return
    sys.exit(soak(options))


if __name__ == "__main__":
    main()
