"""Options of how an answer is written, which ask, chat and generate have alike."""

from __future__ import annotations

import io
import json

import pytest

from support.command_line import refused

ASK = "Who is the narrator?"


@pytest.fixture(params=["ask", "chat", "generate"])
def written(request, run, document, folder, monkeypatch):
    """Runs each command with further options; its output with ``--json``, and the answer in it."""

    def call(*more, as_json=True):
        options = ["--max-new-tokens", 16, *more, *(["--json"] if as_json else [])]
        if request.param == "ask":
            ran = run("ask", document, ASK, *options)
        elif request.param == "chat":
            monkeypatch.setattr("sys.stdin", io.StringIO(ASK))
            ran = run("chat", document, *options)
        else:
            ran = run("generate", folder, ASK, *options)
        if not as_json or ran.code:
            return ran
        body = json.loads(ran.out)
        body = body["turns"][0] if request.param == "chat" else body
        return body.get("answer", body.get("text")), body["finish"]

    return call


def test_sampled_and_greedy(written):
    greedy, finish = written()
    assert finish == "length"
    hot = ["--temperature", 1.8, "--seed"]
    first, again, other = written(*hot, 3), written(*hot, 3), written(*hot, 4)
    assert first == again != other and greedy not in (first[0], other[0])
    assert written("--temperature", 0)[0] == greedy == written("--temperature", 2, "--top-k", 1)[0]
    assert written("--top-p", "1e-6")[0] == greedy != written("--repetition-penalty", 9)[0]


def test_stop(written):
    whole, _ = written()
    stop = whole[5:8]
    text, finish = written("--stop", "not in it", "--stop", stop.replace("\n", r"\n"))
    assert text == whole[: whole.index(stop)] and finish == "stop"
    cut, ended = written(as_json=False), written("--stop", stop, as_json=False)
    assert "--max-new-tokens allows more" in cut.err and "--max-new-tokens" not in ended.err
    assert ended.out.strip() == text.strip()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", -1], "--temperature must be"),
        (["--temperature", "nan"], "--temperature must be"),
        (["--temperature", 2.1], "--temperature must be"),
        (["--top-p", 0], "--top-p must be"),
        (["--top-p", 1.5], "--top-p must be"),
        (["--top-k", 0], "--top-k"),
        (["--repetition-penalty", 0], "--repetition-penalty must be"),
        (["--repetition-penalty", "inf"], "--repetition-penalty must be"),
        (["--seed", -1, "--temperature", 1], "--seed"),
        (["--seed", 3], "--seed changes only how tokens are sampled"),
        (["--temperature", 0, "--top-k", 5], "--top-k changes only how tokens are sampled"),
        (["--stop", ""], "--stop is empty"),
    ],
)
def test_one_line(written, options, words):
    refused(written(*options, as_json=False), words)
