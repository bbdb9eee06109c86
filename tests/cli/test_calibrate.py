"""``longspan calibrate``: the file it writes, the report it prints, and one line for whatever is wrong."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import longspan
from longspan.bundled import heldout_text


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(heldout_text()[:12_000], encoding="utf-8")
    return tmp_path / "book.txt"


def test_it_writes_what_the_library_makes(run, folder, book, tmp_path):
    ran = run("calibrate", folder, "--text", book, "--out", tmp_path / "c.safetensors", "--tokens", 1000,
              "--reduced", 5, "--solver", "pca", "--device", "cpu")  # fmt: skip
    assert ran.code == 0 and ran.out == "" and "5 numbers per token and layer" in ran.err and "1,000 tokens" in ran.err
    read = longspan.Calibration.load(tmp_path / "c.safetensors")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    made = longspan.calibrate(
        model, [book.read_text()], tokenizer=tokenizer, tokens=1000, reduced=5, solver="pca", progress=False
    )
    assert read.settings() == made.settings() and read.model_id == folder.name
    assert all(read.layers[n].theta_k.equal(made.layers[n].theta_k) for n in (0, 1))
    longspan.extend(model, "esa", calibration=tmp_path / "c.safetensors")


def test_several_texts_are_read_in_order(run, folder, book, tmp_path):
    (tmp_path / "short.txt").write_text("A few words before it.", encoding="utf-8")
    args = ["--text", tmp_path / "short.txt", "--text", book, "--out", tmp_path / "c.st", "--tokens", 300]
    assert run("calibrate", folder, *args, "--device", "cpu").code == 0
    assert longspan.Calibration.load(tmp_path / "c.st").tokens == 300


@pytest.mark.parametrize("extra", [[], ["--report-text"]])
def test_the_report(run, folder, book, tmp_path, extra, monkeypatch):
    args = ["--text", book, "--out", tmp_path / "c.safetensors", "--tokens", 2000, "--report", "--report-tokens", 400]
    args += ["--report-top", 16, *extra, *([book] if extra else [])]
    ran = run("calibrate", folder, *args, "--device", "cpu")
    assert ran.code == 0, ran.err
    assert "top 16 of 206 keys, 128 queries" in ran.out
    assert all(solver in ran.out for solver in ("closed_form", "sgd", "pca"))
    assert longspan.Calibration.load(tmp_path / "c.safetensors").solver == "closed_form"
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("longspan.cli.output.find_spec", lambda name: None)
    (tmp_path / "c.png").unlink()
    ran = run("calibrate", folder, *args, "--device", "cpu")
    assert ran.code == 0 and "matplotlib is missing" in ran.err and not (tmp_path / "c.png").exists()


def test_a_short_text_is_said(run, folder, book, tmp_path):
    ran = run("calibrate", folder, "--text", book, "--out", tmp_path / "c.safetensors", "--device", "cpu")
    assert ran.code == 0 and "note: the texts end after" in ran.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["--text"]),
        (["--text", "BOOK"], ["--out"]),
        (["--text", "none.txt", "--out", "c.st"], ["none.txt"]),
        (["--text", "BOOK", "--out", "no/such/c.st"], ["no/such/c.st", "existing folder"]),
        (["--text", "BOOK", "--out", "c.png"], ["c.png", ".safetensors"]),
        (["--text", "BOOK", "--out", "c.st", "--solver", "magic"], ["--solver", "magic", "closed_form"]),
        (["--text", "BOOK", "--out", "c.st", "--reduced", "17"], ["reduced must be 1 to 16"]),
        (["--text", "BOOK", "--out", "c.st", "--reduced", "0"], ["--reduced"]),
        (["--text", "BOOK", "--out", "c.st", "--tokens", "10"], ["10 tokens", "16 channels"]),
        (["--text", "BOOK", "--out", "c.st", "--report"], ["after 50,000 for the calibration 0 remain"]),
        (["--text", "BOOK", "--out", "c.st", "--report", "--report-text", "none.txt"], ["none.txt"]),
        (
            ["--text", "BOOK", "--out", "c.st", "--tokens", "500", "--report", "--report-tokens", "100"],
            ["100 tokens leave 0 keys", "at least 226 tokens"],
        ),
        (["--text", "BOOK", "--out", "c.st", "--report-text", "BOOK"], ["--report-text: valid only with --report"]),
        (["--text", "BOOK", "--out", "c.st", "--report-top", "8", "--report-tokens", "4"], ["-tokens, --report-top:"]),
    ],
)
def test_one_line(run, folder, book, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    ran = run("calibrate", folder, *[str(book) if arg == "BOOK" else arg for arg in args], "--device", "cpu")
    assert ran.code != 0 and ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("longspan: error: "), ran.err
    assert all(word in lines[0] for word in words), ran.err
    assert not (tmp_path / "c.st").exists()


def test_help_names_it(run):
    assert "calibrate" in run("--help").out
