"""``longspan doctor`` as a user runs it."""

from __future__ import annotations

import json
import shlex

import pytest

from longspan.cli import options
from longspan.errors import LongspanError

CPU = ("--device", "cpu")


def test_without_a_model_the_machine_alone(run):
    ran = run("doctor")
    assert ran.code == 0 and "kernels in C" in ran.out and "Next: longspan doctor MODEL" in ran.out
    assert json.loads(run("doctor", "--json").out)["model"] is None


def test_a_model(run, folder):
    ran = run("doctor", folder, "--length", "2k", *CPU)
    assert ran.code == 0 and "2,048 tokens" in ran.out and "Recommendation" in ran.out and "measuring" in ran.err
    quiet = run("doctor", folder, "--length", "2k", "--json", "--quiet", *CPU)
    made = json.loads(quiet.out)
    assert quiet.err == "" and made["ok"] and made["recommendation"]["method"] == "dca"


def test_a_limit_that_leaves_no_estimate_recommends_nothing(run, folder):
    ran = run("doctor", folder, "--length", "2k", "--seconds", "1e-9", "--json", "-q", *CPU)
    made = json.loads(ran.out)
    assert ran.code == 1 and made["estimate"] is None and "allow more seconds" in made["no_estimate"]
    assert made["recommendation"]["kv_tier"] is None and not made["recommendation"]["commands"]


def test_the_command_to_copy_runs(run, folder, tmp_path):
    (tmp_path / "book.txt").write_text("Rivers run to the sea. " * 60, encoding="utf-8")
    made = json.loads(run("doctor", folder, "--length", "1k", "--method", "streaming-llm", "--json", *CPU).out)
    words = shlex.split(made["recommendation"]["commands"][0])
    given = {"TEXT": str(tmp_path / "book.txt"), "QUESTION": "Where?"}
    assert words[0] == "longspan"
    ran = run(*[given.get(word, word) for word in words[1:]], "--max-new-tokens", 3, "--device", "cpu")
    assert ran.code == 0 and "streaming-llm" in ran.err


def test_a_model_that_cannot_be_extended(run, not_rope):
    ran = run("doctor", not_rope, *CPU)
    assert ran.code == 1 and "cannot be extended" in ran.out and "This machine" in ran.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--length", "200k"], "--length requires a model"),
        (["--method", "dca", "--device", "cpu"], "--method, --device: valid only with a model"),
        (
            ["bundled", "--length", "200kb"],
            "--length takes tokens such as 4096, 200k or 1M, or windows such as 4x, not '200kb'",
        ),
        (["bundled", "--method", "dcaa"], "did you mean 'dca'"),
        (["bundled", "--seconds", "0"], "seconds must be more than 0"),
        (["bundled", "--kv-dir", "/no/such/folder"], "is not a folder"),
        (["./nowhere"], "this model folder does not exist"),
    ],
)
def test_errors_are_one_line(run, args, words):
    ran = run("doctor", *args, "--quiet")
    assert ran.code == 1 and ran.out == "" and words in ran.err and len(ran.err.splitlines()) == 1


def test_a_config_without_a_window(run, no_window):
    ran = run("doctor", no_window, "-q")
    assert ran.code == 1 and "pass --window" in ran.err and len(ran.err.splitlines()) == 1
    assert run("doctor", no_window, "--window", 128, *CPU).code == 0


def test_weights_that_do_not_fit_are_not_loaded(run, folder, monkeypatch):
    monkeypatch.setattr("longspan.machine.memory.free_memory", lambda device: 1000)
    monkeypatch.setattr("longspan.cli.doctor.load_model", lambda *args, **options: pytest.fail("it was loaded"))
    ran = run("doctor", folder)
    assert ran.code == 1 and "its weights take" in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("131072", 131072),
        ("200k", 204_800),
        ("1M", 1 << 20),
        ("0.5k", 512),
        (" 8K ", 8192),
        ("4x", 2048),
        ("0.5X", 256),
    ],
)
def test_lengths(text, tokens):
    assert options.length("--length", text, window=512) == tokens


@pytest.mark.parametrize("text", ["", "k", "-1", "0", "1.5", "1e5", "4xx", "200 k", "nan", "9" * 400])
def test_lengths_that_are_none(text):
    with pytest.raises(LongspanError, match="--length takes tokens"):
        options.length("--length", text, window=512)
