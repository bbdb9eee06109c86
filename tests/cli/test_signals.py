"""Ctrl-C, SIGTERM and SIGHUP at any moment: one line, 130, 143 or 129, and nobody left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import mkdtemp

import pytest

from longspan import signals
from support.sessions import RUN, catches, hangups, left_of

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("signals")
    (path / "text").write_text("some words here and there. " * 20_000)
    return path


def begin(args, place):
    """The process, as soon as it deals with signals; in a session of its own, as a terminal's."""
    if args[0] == "eval":  # into a folder of its own: one that goes on from another's samples may be done too soon
        args = [*args[:-1], mkdtemp(dir=place)]
    with hangups(signal.SIG_DFL):
        process = subprocess.Popen(
            [*RUN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=place
        )
    while process.poll() is None and not catches(process.pid, TERM):
        time.sleep(0.002)
    return process


def stopped(args, place, number, after, to_all):
    process = begin(args, place)
    try:
        time.sleep(after)
        (os.killpg if to_all else os.kill)(process.pid, number)
        _out, err = process.communicate(timeout=120)
        end = time.monotonic() + 5
        while left_of(process.pid) and time.monotonic() < end:  # what was killed takes a moment to be gone
            time.sleep(0.05)
        return process.returncode, err, left_of(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def check(args, place, number, after, to_all):
    code, err, left = stopped(args, place, number, after, to_all)
    word = signals.WORDS[number]
    assert code == 128 + number and not left, (code, err, left)
    lines = [line for line in err.splitlines() if line.strip()]
    assert "Traceback" not in err and "Exception ignored" not in err, err
    # A run that measures says where it can be taken up again, once it has begun to.
    assert lines[-1] == f"longspan: {word}" or (args[0] == "eval" and lines[-1].startswith("stopped, with ")), err
    assert sum(word in line or line.startswith("stopped") for line in lines) == 1


DEMO = ["demo", "--prompts", "1", "--lengths", "1x,2x,4x,8x"]
COMMANDS = {
    "demo": DEMO,
    "eval": ["eval", "passkey", "--model", "bundled", "--workers", "2", "--lengths", "4x,16x", "--out", "eval"],
    "generate": ["generate", "--model", "bundled", "--prompt", "hello", "--file", "text"],
    "calibrate": ["calibrate", "bundled", "--text", "text", "--out", "c.safetensors", "--report"],
}


@pytest.mark.parametrize(("number", "after"), [(INT, 0.0), (TERM, 0.4), (HUP, 0.2)])
def test_while_it_imports(place, number, after):
    check(DEMO, place, number, after, to_all=True)


@pytest.mark.long
@pytest.mark.parametrize("to_all", [True, False])
@pytest.mark.parametrize("after", [0.05, 0.2, 0.5, 1, 2, 3, 4, 5, 7, 10, 14])
@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_at_any_time(place, command, number, after, to_all):
    check(COMMANDS[command], place, number, after, to_all)


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 2, 4, 6])
def test_twice(place, after):
    """Who is in a hurry sends two."""
    process = begin(COMMANDS["eval"], place)
    time.sleep(after)
    for _ in range(2):
        os.killpg(process.pid, INT)
        time.sleep(0.1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err


def here(body):
    """Run statements in a process that has installed the handlers; its exit code and stderr."""
    code = f"import os, signal, sys, threading, time\nfrom longspan import signals\nsignals.install('prog')\n{body}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_inside_a_call_that_hears_nothing():
    """A kernel may take minutes over a long text; the process ends all the same."""
    body = (
        "import hashlib\nsignals._PATIENCE = 0.2\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    code, err = here(body)
    assert (code, err) == (130, "prog: interrupted\n")


def test_where_nothing_can_be_raised():
    body = (
        "class Object:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        for _ in range(10**6): pass\n"
        "try:\n"
        "    Object()\n"
        "    time.sleep(30)\n"
        "except signals.Stopped as stopped:\n"
        "    signals.leave(stopped.number)\n"
    )
    assert here(body) == (143, "prog: terminated\n")


def test_inside_an_import(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntry:\n    time.sleep(30)\nexcept BaseException:\n    pass\n")
    body = (
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "import slow\nprint('went on', file=sys.stderr)"
    )
    assert here(body) == (143, "prog: terminated\n")


def test_one_that_is_ignored_stays_so():
    code = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom longspan import signals\n"
        "signals.install('prog')\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_deferred_signals_come_at_the_end():
    came = []
    before = signal.signal(TERM, lambda number, frame: came.append("handled"))
    try:
        with signals.deferred_signals():
            os.kill(os.getpid(), TERM)
            time.sleep(0.05)
            came.append("inside")
        assert came == ["inside", "handled"]
        assert signal.getsignal(TERM) is not before
        threading.Thread(target=lambda: signals.deferred_signals().__enter__()).start()  # nothing to defer elsewhere
    finally:
        signal.signal(TERM, before)
