"""Each command's help ends with examples that run as they are printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
import typer

from longspan.cli.commands import app

COMMANDS = typer.main.get_command(app).commands
CHEAP = {"methods", "models"}
ENDLESS = {"serve", "fetch", "demo", "tune"}  # a server; and what needs a network or minutes


def lines_of(name):
    return COMMANDS[name].callback.examples


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_the_commands_take(run, name):
    said = run(name, "-h").out.rstrip().splitlines()
    lines = lines_of(name)
    assert 2 <= len(lines) <= 3 and said[-len(lines) - 1 :] == ["  Examples:", *(f"    {line}" for line in lines)]
    assert any(f"longspan {name}" in line for line in lines)
    for part in (part for line in lines for part in line.split(" | ")):
        program, *words = shlex.split(part)
        if program == "longspan":
            COMMANDS[words[0]].make_context(words[0], words[1:]).close()
        else:
            assert program == "echo"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in CHEAP else pytest.mark.long) for name in COMMANDS if name not in ENDLESS],
)
def test_they_run_as_they_are_printed(name, tmp_path):
    script = f'longspan() {{ {shlex.quote(sys.executable)} -m longspan "$@"; }}; set -e -o pipefail\n'
    ran = subprocess.run(
        ["bash", "-c", script + "\n".join(lines_of(name))], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0 and "error" not in ran.stderr, ran.stderr


def test_the_short_list_fits_a_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("methods", "--short").out.splitlines()
    assert len(said) <= 23 and max(map(len, said)) <= 80, "a line is left for the prompt"
    assert all(any(re.match(rf"{name}\s", line) for line in said) for name in ("dca", "streaming-llm", "infllm"))
    refused = run("methods", "--short", "--window", 512)
    assert refused.code == 1 and "leave one of them out" in refused.err
