"""``longspan reproduce`` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from longspan.bundled import FOLDER
from longspan.errors import LongspanError
from longspan_eval.reproduce.texts import PG19_VALIDATION

SMALL = ["--samples", 1, "--max-length", 256, "--scale", "quick"]


def test_lists_every_table(run):
    ran = run("reproduce", "--list")
    assert ran.code == 0
    for word in ("longheads", "dca", "esa", "Table 7", "Figure 3", "Eq 9"):
        assert word in ran.out


def test_a_table_and_again(run, folder, tmp_path):
    out = tmp_path / "out"
    words = ["reproduce", "dca", "--model", folder, "--tables", "figure-2,table-1", "--out", out, *SMALL]
    ran = run(*words)
    assert ran.code == 0, ran.err
    assert "# dca on" in ran.out and "**Published, Table 1**" in ran.out
    assert "needs `perplexity/pg19-validation`" in ran.out
    assert f"in {out}: results.json, summary.md" in ran.err
    first = json.loads((out / "results.json").read_text())
    assert (first["scale"], first["scaled_to"]) == ("quick", "window")
    assert set(first["tables"]) == {"figure-2", "table-1"}
    assert "--tables figure-2,table-1 --samples 1 --max-length 256" in first["command"].replace("'", "")
    again = run(*words)
    assert again.code == 0 and "table-1: nothing left to measure" in again.err
    assert json.loads((out / "results.json").read_text()) == first


@pytest.mark.long
def test_killed_in_the_middle_it_gives_the_same(run, folder, tmp_path):
    words = ["reproduce", "longheads", "--model", str(folder), "--tables", "table-1,figure-4", "--scale", "quick"]
    words += ["--samples", "2", "--max-length", "512"]
    assert run(*words, "--out", tmp_path / "straight").code == 0
    script = f"from longspan.cli import main; main({[*words, '--out', str(tmp_path / 'killed')]!r})"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = tmp_path / "killed" / "samples.jsonl"
    while not (samples.exists() and samples.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert samples.read_bytes().count(b"\n") < (tmp_path / "straight" / "samples.jsonl").read_bytes().count(b"\n")
    assert run(*words, "--out", tmp_path / "killed").code == 0
    for name in ("results.json", "summary.md"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "straight" / name).read_text()


@pytest.mark.long
def test_the_bundled_model_is_quick_and_has_its_calibration(run, tmp_path):
    ran = run("reproduce", "esa", "--model", "bundled", "--tables", "figure-2", "--samples", 1, "--out", tmp_path)
    assert ran.code == 0, ran.err
    body = json.loads((tmp_path / "results.json").read_text())
    assert body["scale"] == "quick"
    cells = {(cell["row"], cell["column"]): cell["value"] for cell in body["tables"]["figure-2"]["cells"]}
    layers = json.loads((FOLDER / "config.json").read_text())["num_hidden_layers"]
    assert {row for row, _ in cells} == {"mean", *(f"layer {n}" for n in range(layers))}
    assert 0.3 < cells["mean", "principal components"] < cells["mean", "reduced scores (closed_form)"] < 1.0


def test_the_command_has_a_calibration_that_was_given(run, tmp_path):
    words = ["reproduce", "esa", "--model", "bundled", "--tables", "eq-9", "--max-length", 1, "--out", tmp_path]
    for given in ([], ["--calibration", FOLDER / "calibration.safetensors"]):
        assert run(*words, *given).code == 0
        command = json.loads((tmp_path / "results.json").read_text())["command"]
        assert command.endswith(" ".join(["--max-length 1", *map(str, given)]))


def test_an_error_stays_until_it_is_to_be_tried_again(run, folder, tmp_path, monkeypatch):
    words = ["reproduce", "longheads", "--model", folder, "--tables", "figure-4", "--out", tmp_path, *SMALL]

    def errors():
        cells = json.loads((tmp_path / "results.json").read_text())["tables"]["figure-4"]["cells"]
        return sum("ZeroDivisionError" in (cell["reason"] or "") for cell in cells)

    with monkeypatch.context() as broken:
        broken.setattr("longspan_eval.measure.read", lambda *_, **__: 1 // 0)
        assert run(*words).code == 1 and errors() > 0
    assert run(*words).code == 1 and errors() > 0
    assert run(*words, "--retry-errors").code == 0 and errors() == 0


def test_time_that_is_over(run, folder, tmp_path):
    ran = run(
        "reproduce", "longheads", "--model", folder, "--tables", "figure-4", "--max-minutes", "0.00001", "--out",
        tmp_path, *SMALL,
    )  # fmt: skip
    assert ran.code == 0 and "the time is over" in ran.err and "cells are unfinished" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a paper: longheads, dca, esa"),
        (["yarn"], "unknown paper 'yarn'; there are longheads"),
        (["esa"], "--model"),
        (["esa", "--model", "M", "--tables", "nine"], "esa has no table 'nine'"),
        (["esa", "--model", "M", "--scale", "huge"], "--scale must be auto, paper or quick"),
        (["esa", "--model", "M", "--scale-to", "quick"], "--scale-to must be auto, paper or window"),
        (["esa", "--model", "M", "--max-minutes", 0], "--max-minutes must be above 0"),
        (["esa", "--model", "M", "--max-full-seconds", 0], "--max-full-seconds must be above 0"),
        (["esa", "--model", "M", "--data-dir", "nowhere"], "nowhere: this folder does not exist"),
        (["esa", "--model", "M", "--calibration", "nowhere"], "nowhere"),
        (
            ["esa", "--model", "M", "--calibration", "F", "--tables", "eq-9", "--max-length", 1],
            "the calibration is for layers [0, 1, 2, 3, 4, 5] of bundled, but",
        ),
        (["dca", "--model", "M", "--calibration", "F"], "--calibration: no table of dca uses reduced keys"),
        (["longheads", "--model", "M", "--calibration", "F"], "--calibration: no table of longheads"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(run, folder, tmp_path, words, said):
    given = [{"M": folder, "F": FOLDER / "calibration.safetensors"}.get(word, word) for word in words]
    ran = run("reproduce", *given, *(["--out", tmp_path / "out"] if words else []))
    assert ran.code == 1 and ran.err.startswith("longspan: error:") and said in ran.err and ran.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dca", "--data-dir", "nowhere"], "nowhere: this folder does not exist"),
        (["dca", "--data-dir", "DATA", "--tables", "table-4"], "tpo.jsonl, line 1: field 'instructions' is missing"),
        (["dca", "--data-dir", "DATA", "--tables", "table-6"], "paper.txt: there is no text in it"),
        (["dca", "--data-dir", "DATA", "--tables", "figure-4"], "book.txt: not UTF-8 text"),
        (["esa", "--calibration", "nowhere"], "nowhere"),
        (["longheads", "--out", "DATA/unseen/paper.txt"], "is a file; name a folder"),
        (["dca", "--data-dir", "DATA", "--tables", "figure-5"], "the model was loaded"),
    ],
)
def test_what_is_wrong_with_a_file_is_found_before_a_model_is_loaded(run, tmp_path, monkeypatch, words, said):
    def load(*args, **more):
        raise LongspanError("the model was loaded")

    monkeypatch.setattr("longspan_eval.cli.reproduce.load_model", load)
    monkeypatch.chdir(tmp_path)
    for name, data in (
        ("leval/tpo.jsonl", b'{"input": "a"}\n'),
        ("unseen/paper.txt", b" "),
        (f"{PG19_VALIDATION.folder}/book.txt", b"a\xff"),
    ):
        (tmp_path / "DATA" / name).parent.mkdir(parents=True)
        (tmp_path / "DATA" / name).write_bytes(data)
    ran = run("reproduce", *words, "--model", "bundled")
    assert ran.code == 1 and said in ran.err and ran.err.count("\n") == 1, ran.err
