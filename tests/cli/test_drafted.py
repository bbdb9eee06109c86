"""``--draft`` changes no answer, and says what was drafted."""

from __future__ import annotations

import io
import json

import pytest

from longspan.drafting import DraftLengths
from support.command_line import refused

ASK = "Who is the narrator? Who is the narrator? Who is the"


@pytest.fixture(autouse=True)
def all_of_them(monkeypatch):
    """Every proposal is verified whole, whatever it costs."""
    monkeypatch.setattr(DraftLengths, "affords", True)
    monkeypatch.setattr(DraftLengths, "length", lambda self, kind, most: min(most, 15) if self._plain else 0)


@pytest.mark.parametrize("options", [(), ("--temperature", "0.4", "--seed", "3"), ("--repetition-penalty", "1.1")])
def test_ask_and_generate(run, document, folder, book, options):
    ask = ("ask", document, ASK, "--max-new-tokens", "24", "--device", "cpu", *options)
    generate = ("generate", folder, ASK, "--file", book, "--max-new-tokens", "24", "--device", "cpu", *options)
    for command, key in ((ask, "text"), (generate, "answer")):
        plain, drafted = (json.loads(run(*command, "--json", *more).out) for more in ((), ("--draft", "lookup")))
        assert drafted[key] == plain[key] and plain["drafts"] is None
        assert drafted["drafts"]["drafted"] >= drafted["drafts"]["accepted"]
        assert "drafted" in run(*command, "--draft", "auto").err and "drafted" not in run(*command).err


def test_chat(run, document, monkeypatch):
    found = []
    for draft in ((), ("--draft", "auto")):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{ASK}\n{ASK}\n"))
        found.append(json.loads(run("chat", document, "--json", "--max-new-tokens", "20", *draft).out)["turns"])
    assert [turn["text"] for turn in found[1]] == [turn["text"] for turn in found[0]]
    assert all(turn["drafts"]["drafted"] >= turn["drafts"]["accepted"] for turn in found[1])
    assert all(turn["drafts"] is None for turn in found[0])


@pytest.mark.parametrize("command", ["ask", "generate", "chat"])
def test_a_drafter_that_is_not_there(run, document, folder, command):
    given = {"ask": (document, ASK), "generate": (folder, ASK), "chat": (document,)}[command]
    refused(run(command, *given, "--draft", "oracle", "--quiet"), "draft must be one of", "oracle")
