"""What docs/serve.md gives to copy runs as it is printed; the port alone is another."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.bundled import FOLDER, heldout_text
from support.serving import KEY
from support.serving_process import Process

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
PORT = "127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> str:
    """A console block as a script."""
    return "\n".join(line.removeprefix("$ ") for line in block.splitlines())


STARTS, ASKS = blocks("console")
SERVERS = re.findall(r"^longspan serve (.*?) *(?:#.*)?$", commands(STARTS), re.MULTILINE)


def test_there_are_three_servers_and_two_clients():
    assert SERVERS == ["bundled --demo", "bundled book.longspan", "bundled --documents library"]
    assert ASKS.count(f"http://{PORT}") == 3 and len(blocks("python")) == 1 and blocks("python")[0].count(PORT) == 1
    pip = re.search(r"^pip install (.*)$", commands(STARTS), re.MULTILINE)
    assert pip is not None and shlex.split(pip[1], comments=True) == [".[serve]"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="there is no curl or no bash")
def test_the_commands_and_the_client(tmp_path):
    (tmp_path / "book.txt").write_text(heldout_text()[:2_000], encoding="utf-8")
    served = Process(tmp_path / "documents", *shlex.split(SERVERS[0])[1:])
    port = str(served.http.base_url).split("//")[1].strip("/")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "no_proxy": "127.0.0.1"}

    def run(*command: str) -> list[str]:
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    said = run("bash", "-e", "-c", commands(ASKS).replace(PORT, port))
    events = [json.loads(line.removeprefix("data: ")) for line in said if line.startswith("data: ")]
    assert events[-1]["status"] == "ready" and events[-1]["name"] == "key.txt"
    assert KEY in json.loads(said[-1])["choices"][0]["message"]["content"]

    printed = "\n".join(run(sys.executable, "-c", blocks("python")[0].replace(PORT, port)))
    found = re.search(rf"{KEY}.*? (\d{{3,}})\n(.+)", printed, re.DOTALL)
    assert found is not None and int(found[1]) > 300 and found[2].strip(), printed
    assert served.end() == (0, "")


@pytest.mark.long
def test_a_server_of_a_folder(tmp_path):
    model, option, documents = SERVERS[2].split()
    assert (model, option) == ("bundled", "--documents")
    served = Process(tmp_path / documents, model=str(FOLDER))
    assert served.http.get("/v1/models").json()["data"][0]["id"] == str(FOLDER)
    assert served.end() == (0, "")
