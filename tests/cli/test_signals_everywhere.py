"""Signals at many points of each command: one line, the right exit status, and nothing half-written or left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from longspan import signals
from longspan.bundled import heldout_text
from longspan.documents.folder import Folder
from support.sessions import RUN, left_of

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

POINTS = 30
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
LEAVES = {"torchinductor_root", f"torchinductor_{os.environ.get('USER', 'root')}"}  # torch's own, empty
COMMANDS = {
    "read": ["read", "text", "--model", "bundled", "--out", "new/out"],
    "ask": ["ask", "document", "Who spoke?", "--max-new-tokens", "40"],
    "generate": ["generate", "--model", "bundled", "--prompt", "hello", "--file", "text", "--max-new-tokens", "40"],
    "eval": [
        "eval",
        "passkey",
        "--model",
        "bundled",
        "--lengths",
        "2x",
        "--samples",
        "2",
        "--workers",
        "1",
        "--out",
        "new/out",
    ],
    "doctor": ["doctor", "bundled", "--seconds", "2"],
    "fetch": ["fetch", "smollm2"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("signals")
    (path / "text").write_text(heldout_text()[:40_000])
    made = subprocess.run([*RUN, "read", "text", "--model", "bundled", "--out", "document"], cwd=path)
    assert made.returncode == 0
    return path


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


def run_once(place, command, number, after):
    """Exit status, stderr, and what is left: of processes and of temporary files."""
    shutil.rmtree(place / "new", ignore_errors=True)
    (place / "new").mkdir()
    process = subprocess.Popen(
        [*RUN, *COMMANDS[command]], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=environment(place, command),
    )  # fmt: skip
    began = time.monotonic()
    try:
        if number is not None:
            time.sleep(after)
            process.send_signal(number)
        _, err = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    took, end = time.monotonic() - began, time.monotonic() + 5
    while left_of(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    files = {path.name for path in (place / "temporary").iterdir()} - LEAVES
    return process.returncode, err, left_of(process.pid), files, took


@pytest.mark.parametrize("command", COMMANDS)
def test_at_every_point(place, command):
    usual, _, _, _, took = run_once(place, command, None, 0)
    wrong, stopped = [], 0
    for n in range(POINTS):
        number = NUMBERS[n % len(NUMBERS)]
        # Before Python has begun to run the program, what a signal does is the system's.
        after = 0.3 + (took - 0.3) * n / POINTS
        code, err, left, files, _ = run_once(place, command, number, after)
        lines = [line for line in err.splitlines() if line.strip()]
        ended = number != signal.SIGPIPE and code == 128 + number
        early = code == -number and not err  # Python had not begun to run the program
        stopped += ended or early
        said = lines[-1:] == [f"longspan: {signals.WORDS[number]}"] if ended else early or code == usual
        said = said or (ended and command == "eval" and lines[-1].startswith("stopped, with "))
        if not said or left or files or "Traceback" in err or "Exception ignored" in err or not whole(place):
            wrong.append((number.name, round(after, 2), code, err[-400:], left, files))
    assert wrong == [] and (stopped >= POINTS // 3 or took < 2)
