"""Signals at many points of each command: one line, the right exit status, and nothing half-written or left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from longspan import signals
from longspan.documents.folder import Folder
from support.sessions import RUN, catches, hangups, left_of, with_document

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

POINTS = int(os.environ.get("LONGSPAN_POINTS", "4"))
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
LEAVES = {"torchinductor_root", f"torchinductor_{os.environ.get('USER', 'root')}"}  # torch's own, empty
COMMANDS = {
    "read": ["read", "text", "--model", "bundled", "--out", "new/out"],
    "ask": ["ask", "document", "Who spoke?", "--max-new-tokens", "40"],
    "generate": ["generate", "--model", "bundled", "--prompt", "hello", "--file", "text", "--max-new-tokens", "40"],
    "eval": ["eval", "passkey", "--model", "bundled", "--lengths", "2x", "--samples", "2", "--out", "new/out"],
    "doctor": ["doctor", "bundled"],
    "fetch": ["fetch", "smollm2"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return with_document(tmp_path_factory.mktemp("signals"), 40_000)


def environment(place, command):
    """A folder for temporary files, an index without packages and a cache of its own, and no hub."""
    temporary = place / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    if command == "fetch":
        env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(place / "cache")}
    return env


def whole(place):
    """What a command that was stopped may leave: a text that can be taken up again, and lines of samples."""
    out = place / "new" / "out"
    if not out.exists():
        return True
    if list(out.glob("*.jsonl")):
        return all(json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines())
    return Folder(out).has_document() or Folder(out).unfinished() is not None or not any(out.iterdir())


@dataclass(frozen=True)
class Run:
    """How a command ended: its status, what it wrote, the processes and temporary files that are left.

    Attributes:
        caught: whether it handled the signal itself when the signal was sent.
        took: seconds.
    """

    code: int
    out: str
    err: str
    processes: list[str]
    files: set[str]
    caught: bool
    took: float


def run(place, command, number=None, after=0.0):
    shutil.rmtree(place / "new", ignore_errors=True)
    (place / "new").mkdir()
    began, caught = time.monotonic(), False
    with hangups(signal.SIG_DFL), open(place / "out", "w+") as out:
        process = subprocess.Popen(
            [*RUN, *COMMANDS[command]], cwd=place, stdout=out, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=environment(place, command),
        )  # fmt: skip
        try:
            if number is not None:
                time.sleep(after)
                caught = process.poll() is None and catches(process.pid, number)
                process.send_signal(number)
            _, err = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        took, end = time.monotonic() - began, time.monotonic() + 5
        while left_of(process.pid) and time.monotonic() < end:
            time.sleep(0.05)
        out.seek(0)
        files = {path.name for path in (place / "temporary").iterdir()} - LEAVES
        return Run(process.returncode, out.read(), err, left_of(process.pid), files, caught, took)


def fault(one, usual, number):
    """What is wrong with how a signal ended a command, or None."""
    lines = [line for line in one.err.splitlines() if line.strip()]
    done = len(one.out.splitlines()) == len(usual.out.splitlines())  # its work; the rest is the interpreter's own end
    if one.processes or one.files:
        return "something is left"
    if "Traceback" in one.err or "Exception ignored" in one.err:
        return "a traceback"
    if one.code == usual.code:
        return None if done else "half an output and no word"
    if one.code == -number:  # the system's way: before the program runs, or after its work
        return None if done or not one.caught else "no line of its own"
    if one.code != 128 + number:
        return "another status"
    said = lines[-1] == f"longspan: {signals.WORDS[number]}" or lines[-1].startswith("stopped, with ")
    return None if said else "another line"


@pytest.mark.parametrize("command", COMMANDS)
def test_at_every_point(place, command):
    usual, stopped = run(place, command), 0
    assert usual.code == (1 if command == "fetch" else 0), usual.err
    for n in range(POINTS):
        number = NUMBERS[n % len(NUMBERS)]
        one = run(place, command, number, 0.3 + (usual.took - 0.3) * n / POINTS)
        stopped += one.code != usual.code
        wrong = fault(one, usual, number)
        assert wrong is None and whole(place), (wrong, n, number.name, one)
    assert stopped >= POINTS // 3
