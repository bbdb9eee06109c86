"""Commands in terminals that are narrow, without colours or UTF-8, or resized while a bar is drawn."""

from __future__ import annotations

import os
import re
import select
import shutil
import struct
import subprocess
import time

import pytest

from support.sessions import RUN, with_document

fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))

pytestmark = [pytest.mark.hostile, pytest.mark.long]

COMMANDS = {
    "read": ["read", "text", "--model", "bundled", "--out", "new/out"],
    "ask": ["ask", "document", "Who spoke?", "--max-new-tokens", "20", "--passages"],
    "generate": ["generate", "--model", "bundled", "--prompt", "hello", "--file", "text", "--max-new-tokens", "20"],
    "eval": ["eval", "passkey", "--model", "bundled", "--samples", "2", "--lengths", "1x,2x", "--out", "new/out"],
    "doctor": ["doctor", "bundled"],
    "methods": ["methods"],
    "inspect": ["inspect", "bundled"],
    "models": ["models"],
}
TERMINALS = {
    "narrow": (20, {}),
    "plain": (20, {"NO_COLOR": "1", "TERM": "dumb"}),
    "ascii": (80, {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
    "resized": (80, {}),
}
WIDTHS = (20, 120, 5, 80, 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return with_document(tmp_path_factory.mktemp("terminals"), 20_000)


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def shown(command, place, columns, resized, **more):
    """Exit status and all that a terminal gets, which sends SIGWINCH at each new size."""
    ours, theirs = pty.openpty()
    resize(theirs, columns)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **more}
    process = subprocess.Popen(
        [*RUN, *command], stdin=theirs, stdout=theirs, stderr=theirs, cwd=place, env=environment,
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )  # fmt: skip
    os.close(theirs)
    parts, count, last = [], 0, time.monotonic()
    while True:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                parts.append(os.read(ours, 2**16))
            except OSError:  # how a terminal ends
                break
            if not parts[-1]:
                break
        if resized and time.monotonic() > last + 0.2:
            resize(ours, WIDTHS[count % len(WIDTHS)])
            count, last = count + 1, time.monotonic()
    os.close(ours)
    return process.wait(), b"".join(parts)


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal(place, command, terminal):
    shutil.rmtree(place / "new", ignore_errors=True)
    (place / "new").mkdir()
    columns, more = TERMINALS[terminal]
    code, out = shown(COMMANDS[command], place, columns, terminal == "resized", **more)
    said = out.decode("utf-8", "replace")
    assert code == 0 and "Traceback (most recent" not in said, said[-2000:]
    if terminal == "plain":
        assert "\x1b[" not in said.replace("\x1b[?25h", ""), "an escape to a terminal that knows none"
    if terminal == "ascii":
        assert out.isascii(), sorted({c for c in said if not c.isascii()})
    if terminal == "narrow" and command == "read":  # one that breaks leaves a line for each time it is drawn
        assert len(re.findall(r"\n", said)) < 30, said[-2000:]
