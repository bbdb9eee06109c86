"""``longspan tune`` on the bundled model: the table, the preset and who takes it, and that it goes on."""

from __future__ import annotations

import json

import pytest

from longspan.bundled import heldout_text
from longspan.cli import main
from longspan.model.preset import Preset
from longspan_eval.cli import tune as command
from longspan_eval.spec import parse_specs
from longspan_eval.tune import run as running
from support.command_line import refused

SPECS = parse_specs(["dca", "esa:share=group,declared=256", "longheads:chunk_length=400"])


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Three candidates of which one cannot run, two texts, and four questions."""
    monkeypatch.setattr("longspan_eval.tune.book.QUESTIONS", 4)
    monkeypatch.setattr("longspan_eval.tune.candidates.candidates", lambda window: tuple(SPECS))
    monkeypatch.setattr(running, "MOST", 2)


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(heldout_text()[:6000])
    return tmp_path / "book.txt"


@pytest.fixture
def tune(run, book, tmp_path):
    given = ["tune", "bundled", "--length", "640", "--text", book, "--journal", tmp_path / "j", "--device", "cpu"]
    return lambda *args: run(*given, *args)


@pytest.mark.long
def test_a_table_a_line_and_a_preset_that_commands_take(run, tune, book, tmp_path):
    out = tmp_path / "own.json"
    ran = tune("--out", out)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1].startswith("longspan.extend(model, ")
    assert "cannot run" in ran.out and "num_chunks" in ran.out
    preset = Preset.read(out)
    assert preset.by_hand == ran.out.splitlines()[-1]
    assert (preset.length, preset.model.name, preset.model.window) == (640, "bundled", 512)
    assert preset.evidence["asked"] == 8 and len(preset.evidence["beside"]) == 1
    window = preset.window or 512
    shown = run("inspect", "bundled", "--method", out, "--json")
    assert json.loads(shown.out)["window"] == window
    read = run("read", book, "--model", "bundled", "--method", out, "--out", tmp_path / "doc", "--json")
    assert json.loads(read.out)["window"] == window
    assert run("ask", tmp_path / "doc", "Which?", "--max-new-tokens", 2).code == 0
    said = run("generate", "--model", "bundled", "--method", out, "--prompt", "A", "--max-new-tokens", 2, "--json")
    assert json.loads(said.out)["window"] == window
    done = run("eval", "passkey", "--model", "bundled", "--methods", out, "--lengths", 600, "--samples", 1,
               "--out", tmp_path / "run", "--device", "cpu")  # fmt: skip
    assert done.code == 0, done.err
    refused(run("inspect", "bundled", "--method", out, "--set", "share=head"), "a preset takes no --set")


def test_the_same_command_goes_on_and_asks_nothing_twice(tune, tmp_path, monkeypatch):
    whole = tune("--json")
    assert whole.code == 0, whole.err
    lines = (tmp_path / "j").read_text().splitlines(keepends=True)
    assert len(lines) == 5
    (tmp_path / "j").write_text("".join(lines[:2]))
    again = json.loads(tune("--json").out)
    assert len((tmp_path / "j").read_text().splitlines()) == 5
    whole = json.loads(whole.out)
    for row, other in zip(whole["rows"], again["rows"], strict=True):
        for name in ("method", "window", "texts", "found", "asked", "perplexity", "error"):
            assert row[name] == other[name]
    monkeypatch.setattr("longspan_eval.session.Session.measure", None)
    assert json.loads(tune("--json").out) == again


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_an_interrupt_keeps_what_was_measured(tune, tmp_path, monkeypatch, stop):
    from longspan_eval.session import Session

    measure, begun = Session.measure, []

    def interrupted(self, reading):
        if len(begun) == stop:
            raise KeyboardInterrupt
        begun.append(reading)
        return measure(self, reading)

    monkeypatch.setattr(Session, "measure", interrupted)
    ran = tune("--out", tmp_path / "own.json")
    assert ran.code == 130 and "goes on from here" in ran.err
    assert len((tmp_path / "j").read_text().splitlines()) == stop
    assert ("longspan.extend(" in ran.out) == (stop == 3) and not (tmp_path / "own.json").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--length", "512"), ("512 tokens fit the window of 512", "--window")),
        (("--length", "1m"), ("the bundled held-out text has", "1,048,576 are needed")),
        (("--length", "9z"), ("--length takes tokens",)),
        (("--out", "own.txt"), ("ends in .json",)),
        (("--minutes", "0"), ("give --minutes",)),
    ],
)
def test_refused(run, tmp_path, args, words):
    given = ["tune", "bundled", "--journal", tmp_path / "j", "--device", "cpu", "--quiet", "--length", "2x", *args]
    refused(run(*given), *words)


def test_the_help_needs_no_model():
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "--help"])
    assert not stopped.value.code and command.tune.__doc__
