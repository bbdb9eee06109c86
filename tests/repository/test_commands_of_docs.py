"""The shell commands of README and of four pages run as they are printed, those of a page in turn in a new folder."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from longspan.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("quickstart", "documents", "serve", "cli"))]
SKIPPED = {  # by how a command begins
    "git clone": "network of a hub",
    "pip install": "changes the environment of the tests; test_packaging builds what it installs",
    "make demo": "installs an environment; the tests of longspan_eval run both of its parts",
}
# A server runs until the next one starts; pages speak to it at the port that it has by default.
START = """
longspan() { "$PYTHON" -m longspan "$@"; }
python() { "$PYTHON" "$@"; }
quit() { [ -z "${SERVER:-}" ] || { kill "$SERVER"; wait "$SERVER"; SERVER=; }; }
serve() {
  quit; "$PYTHON" -m longspan serve "$@" & SERVER=$!
  until curl -sf "http://127.0.0.1:$LONGSPAN_PORT/health/ready" >/dev/null; do kill -0 "$SERVER"; sleep 1; done
}
trap quit EXIT
set -eE -o pipefail
"""


def commands(page: str) -> list[str]:
    """The commands of the blocks of a page: lines after ``$``, or every line, with those that go on."""
    found: list[str] = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(console|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if language == "console" and not line.startswith("$ "):
                found[-1] += f"\n{line}"
            elif language == "console" or not line.startswith("#"):
                found.append(line.removeprefix("$ "))
    return found


def reason(command: str) -> str | None:
    """Why a command is not run here."""
    return next((why for begin, why in SKIPPED.items() if command.startswith(begin)), None)


def test_what_is_skipped_is_there():
    every = [command for page in PAGES for command in commands(page)]
    assert all(any(command.startswith(begin) for command in every) for begin in SKIPPED)
    assert {"longspan", "git", "pip", "make", "head", "curl", "(cat", "ID=$(python"} == {c.split()[0] for c in every}


@pytest.mark.parametrize("page", PAGES)
def test_they_have_options_that_there_are(page):
    known = typer.main.get_command(app).commands
    for command in commands(page):
        for part in re.split(r" \| | && ", command):
            program, *words = shlex.split(part.partition(" > ")[0], comments=True)
            if program == "longspan":
                known[words[0]].make_context(words[0], words[1:]).close()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_they_run_as_they_are_printed(page, tmp_path):
    """The model and the text come from pip's index if they are not in the user's cache; a chat's stdin is empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = START
    for command in filter(lambda one: reason(one) is None, commands(page)):
        script += f"printf '+ %s\\n' {shlex.quote(command)} >&2\n"
        script += re.sub(r"^longspan serve\b", "serve", command).replace("127.0.0.1:8000", f"127.0.0.1:{port}") + "\n"
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3600,
        env={**os.environ, "PYTHON": sys.executable, "LONGSPAN_PORT": port},
    )  # fmt: skip
    assert ran.returncode == 0 and "error:" not in ran.stderr, ran.stderr[-4000:]
    if page == "docs/serve.md":
        assert "71428" in ran.stdout, ran.stdout
