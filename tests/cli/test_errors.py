"""Every bad input: one clear line on stderr, a non-zero exit code, nothing on stdout, no traceback."""

from __future__ import annotations

import pytest
import torch

from longspan.errors import LongspanError, one_line


def check(ran, *words):
    assert ran.code != 0 and ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("longspan: error: "), ran.err
    for word in words:
        assert str(word) in lines[0], ran.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], ["nonsense"]),
        (["methods", "--nonsense"], ["--nonsense"]),
        (["methods", "--window", "0"], ["--window"]),
        (["generate", "--prompt", "x"], ["MODEL is missing", "--model"]),
        (["generate", "bundled"], ["PROMPT is missing", "--prompt"]),
        (["generate", "bundled", "x", "--prompt", "y"], ["'x' is too much"]),
        (["generate", "--model", "bundled", "--prompt", "  "], ["prompt is empty"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--max-new-tokens", "0"], ["--max-new-tokens"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--dtype", "float7"], ["float7", "bfloat16"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--device", "moon"], ["moon"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--method", "magic"], ["magic", "dca"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--angles", "yarn"], ["name a method"]),
        (["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "chunk_size"], ["key=value"]),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "colour=3"],
            ["colour", "chunk_size"],
        ),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "chunk_size=big"],
            ["chunk_size", "big"],
        ),
        (["inspect", "bundled", "--method", "longheads", "--set", "score=some"], ["token_max", "some"]),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "length_scale=true"],
            ["a number or none"],
        ),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "chunk_size=-1"],
            ["chunk_size"],
        ),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--set", "chunk_size=9999"],
            ["9999", "512"],
        ),
        (
            ["generate", "--model", "bundled", "--prompt", "x", "--method", "dca", "--angles", "right"],
            ["right", "yarn"],
        ),
        (
            [
                "generate",
                "--model",
                "bundled",
                "--prompt",
                "x",
                "--method",
                "dca",
                "--angles",
                "yarn",
                "--set",
                "factor=0.5",
            ],
            ["factor"],
        ),
        (["inspect", "./no/such/folder"], ["model folder does not exist"]),
        (["inspect", "no-such-name"], ["no-such-name", "no folder has this name"]),
        (["inspect", "bundled", "--method", "magic"], ["magic"]),
        (["demo", "--methods", "stock,magic"], ["magic"]),
        (["demo", "--lengths", "1x,many"], ["many"]),
        (["demo", "--lengths", "0x"], ["0x"]),
        (["demo", "--lengths", "4096"], ["multiples of the window", "4096"]),
        (["demo", "--prompts", "0"], ["prompts"]),
        (["demo", "--lengths", "0.5x"], ["too few"]),
    ],
)
def test_one_line(run, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    check(run(*args), *words)


def test_a_file_that_cannot_be_read(run, tmp_path, folder):
    ask = ["generate", "--model", folder, "--prompt", "x", "--file"]
    check(run(*ask, tmp_path / "none.txt"), "none.txt", "No such file")
    check(run(*ask, tmp_path), "directory")
    (tmp_path / "empty.txt").write_text(" \n")
    check(run(*ask, tmp_path / "empty.txt"), "empty")
    (tmp_path / "binary.txt").write_bytes(b"abc\xff\xfe")
    check(run(*ask, tmp_path / "binary.txt"), "UTF-8", "byte 3")


def test_a_model_that_cannot_be_loaded(run, tmp_path, folder):
    check(run("inspect", tmp_path), "no config.json")
    check(run("inspect", folder / "config.json"), "is a file")
    (tmp_path / "config.json").write_text("{")
    check(run("inspect", tmp_path), "not valid JSON")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    check(run("inspect", tmp_path), "cannot load")
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    check(run("inspect", tmp_path), "unheard-of")


def test_a_model_without_rotary_positions(run, not_rope):
    check(run("inspect", not_rope), "position")
    check(run("generate", "--model", not_rope, "--prompt", "x"), "position")


def test_a_config_without_a_window(run, no_window):
    check(run("inspect", no_window), "max_position_embeddings", "window")
    assert run("inspect", no_window, "--window", "128").code == 0


def test_an_output_folder_that_cannot_be_written(run, tmp_path):
    (tmp_path / "taken").write_text("a file")
    check(run("demo", "--out", tmp_path / "taken"), "taken", "exists")
    check(run("demo", "--out", tmp_path / "taken" / "below"), "taken")


def test_out_of_memory(run, folder, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

    monkeypatch.setattr("longspan.documents.writing.TokenStreamer", fails)
    ran = run("generate", "--model", folder, "--prompt", "x")
    assert ran.code == 1 and ran.err.splitlines()[-1].startswith("longspan: error: out of memory")


def test_faults_of_our_own_are_not_hidden(folder, monkeypatch):
    from longspan.cli import main

    def fails(*args, **kwargs):
        raise KeyError("a fault in the program")

    monkeypatch.setattr("longspan.documents.writing.TokenStreamer", fails)
    with pytest.raises(KeyError):
        main(["generate", "--model", str(folder), "--prompt", "x"])


def test_the_lines_of_an_error_stay_apart_in_one_line():
    assert one_line(LongspanError("one: do this\n\n  two:  do that")) == "one: do this; two: do that"
    assert one_line(ValueError("a sentence\nthat goes on")) == "a sentence that goes on"
