"""``longspan analyze``: the table, the files, and one line for whatever is wrong."""

from __future__ import annotations

import json
import re

import pytest

from longspan.bundled import heldout_text
from support.command_line import refused


@pytest.fixture
def book(tmp_path):
    text = heldout_text()
    text = text[:1500] + "\nThe pass key is 61873.\n" + text[1500:4000]
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    return tmp_path / "book.txt"


@pytest.mark.parametrize("method", ["longheads:chunk_length=16,num_chunks=5", "esa", "infllm"])
def test_a_task(run, folder, tmp_path, method):
    out = tmp_path / "made" / "here"
    ran = run("analyze", "--model", folder, "--method", method, "--task", "passkey", "--lengths", "2x,300",
              "--samples", 2, "--out", out, "--device", "cpu", "--seed", 5)  # fmt: skip
    assert ran.code == 0, ran.err
    assert all(word in ran.out for word in ("cover", "Gini", "hit@1", "hit@5", "split", "window 128"))
    names = ["analysis.json", "page-256.html", "page-300.html", "selection-256.png", "selection-300.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    found = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
    assert found["model"] == folder.name and found["task"] == "passkey" and found["window"] == 128
    assert found["method"]["name"] == method.partition(":")[0] and found["recall"] is None
    assert [row["length"] for row in found["lengths"]] == [256, 300]
    for row in found["lengths"]:
        assert row["n"] == 2 and [one["seed"] for one in row["prompts"]] == [5, 6]
        assert {one["tokens"] for one in row["prompts"]} == {row["length"] - 8}
        assert all(one["answer_chunks"] for one in row["prompts"]) and row["found"]["n"] == 2
        assert row["cover"] == pytest.approx(sum(one["cover"] for one in row["prompts"]) / 2)
        assert row["whole"]["n"] + row["split"]["n"] == 2
    page = (out / "page-256.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and str(folder) not in page
    assert "What is the pass key?" in re.sub("<[^>]+>", "", page)
    assert (out / "selection-300.png").read_bytes().startswith(b"\x89PNG")


def test_a_file(run, folder, book, tmp_path):
    args = ["analyze", "--model", folder, "--method", "esa", "--file", book, "--out", tmp_path / "o", "--device", "cpu"]
    ran = run(*args, "--prompt", "What is the pass key?", "--answer", "61873", "--chunk", 50)
    assert ran.code == 0, ran.err
    (row,) = json.loads((tmp_path / "o" / "analysis.json").read_text(encoding="utf-8"))["lengths"]
    (one,) = row["prompts"]
    assert one["chunks"] == -(-one["tokens"] // 50) and len(one["answer_chunks"]) == 1
    assert one["hit1"] is not None and one["score"] is None and row["found"]["n"] == 0
    page = (tmp_path / "o" / f"page-{row['length']}.html").read_text(encoding="utf-8")
    assert page.count("class=answer") == 1 and "What is the pass key?" in page
    ran = run(*args, "--lengths", "200", "--answer", "61873")
    assert ran.code == 1 and "the first 200 tokens of the text do not contain '61873'" in ran.err
    ran = run(*args, "--lengths", "200")
    assert ran.code == 0 and (tmp_path / "o" / "page-200.html").exists()


def test_recall(run, folder, book, tmp_path):
    made = run("calibrate", folder, "--text", book, "--tokens", 900, "--out", tmp_path / "c.st", "--device", "cpu")
    assert made.code == 0, made.err
    args = ["analyze", "--model", folder, "--method", "esa", "--calibration", tmp_path / "c.st", "--task", "passkey",
            "--samples", 1, "--out", tmp_path / "o", "--device", "cpu"]  # fmt: skip
    refused(run(*args, "--lengths", "200"), "at least 226 tokens")
    assert not (tmp_path / "o").exists(), "nothing was read"
    ran = run(*args, "--lengths", "400")
    assert ran.code == 0, ran.err
    assert "recall of the top 32" in ran.out and (tmp_path / "o" / "recall.png").exists()
    recall = json.loads((tmp_path / "o" / "analysis.json").read_text(encoding="utf-8"))["recall"]
    assert [row["index"] for row in recall["rows"]] == [0, 1]
    assert all(0 < row["layer"] <= 1 and row["solver"] == "closed_form" for row in recall["rows"])


def test_relative_positions(run, tmp_path):
    ran = run("analyze", "--method", "dca:chunk_size=6,local_window=4", "--window", 10, "--lengths", "12,2x",
              "--out", tmp_path / "o")  # fmt: skip
    assert ran.code == 0 and ran.out == "", ran.err
    names = ["analysis.json", "positions-12.png", "positions-20.png"]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == names
    (first, _) = json.loads((tmp_path / "o" / "analysis.json").read_text())["lengths"]
    assert first == {"length": 12, "kept": 1.0, "largest_relative_position": 9}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--method", "magic"], ["magic", "longheads"]),
        (["--method", "esa:query_chunk"], ["query_chunk", "key=value"]),
        (["--method", "esa", "--task", "passkey"], ["--model"]),
        (["--method", "esa", "--model", "M"], ["--task", "--file"]),
        (["--method", "esa", "--model", "M", "--task", "passkey", "--file", "BOOK"], ["either --task"]),
        (["--method", "esa", "--model", "M", "--task", "nothing"], ["nothing", "--list"]),
        (["--method", "esa", "--model", "M", "--task", "longbench-qasper"], ["longbench-qasper", "file of its own"]),
        (["--method", "esa", "--model", "M", "--task", "passkey", "--prompt", "x"], ["--prompt", "--file"]),
        (["--method", "esa", "--model", "M", "--file", "BOOK", "--answer", " "], ["--answer is empty"]),
        (["--method", "esa", "--model", "M", "--file", "none.txt"], ["none.txt"]),
        (["--method", "esa", "--model", "M", "--file", "BOOK", "--lengths", "100k"], ["102,400", "fewer"]),
        (["--method", "esa", "--model", "M", "--file", "BOOK", "--lengths", "64"], ["fits the window of 128"]),
        (
            ["--method", "esa", "--model", "M", "--file", "BOOK", "--lengths", "2", "--prompt", "Why?"],
            ["question alone"],
        ),
        (["--method", "esa", "--model", "M", "--file", "BOOK", "--lengths", "long"], ["long"]),
        (["--method", "esa", "--model", "M", "--task", "passkey", "--lengths", "1x"], ["fits the window of 128"]),
        (["--method", "esa", "--model", "M", "--task", "passkey", "--lengths", "20"], ["too few"]),
        (["--method", "esa:local=500", "--model", "M", "--task", "passkey"], ["local", "window"]),
        (["--method", "longheads", "--model", "M", "--task", "passkey", "--calibration", "none.st"], ["none.st"]),
        (["--method", "dca", "--model", "M"], ["dca", "leave --model, --device out"]),
        (
            [
                "--method",
                "dca",
                "--window",
                "64",
                "--prompt",
                "Who?",
                "--calibration",
                "/nowhere.st",
                "--samples",
                "99",
            ],
            ["dca", "leave --prompt, --samples, --calibration out"],
        ),
        (
            ["--method", "dca", "--window", "64", "--answer", "x", "--seed", "0", "--chunk", "8", "--dtype", "float32"],
            ["leave --answer, --seed, --chunk, --dtype out"],
        ),
        (
            ["--method", "esa", "--model", "M", "--file", "BOOK", "--samples", "10"],
            ["--samples: valid only with --task"],
        ),
        (
            ["--method", "esa", "--model", "M", "--file", "BOOK", "--samples", "1", "--seed", "0"],
            ["--samples, --seed: valid only with --task", "one prompt per length"],
        ),
        (["--method", "dca"], ["--window"]),
        (["--method", "dca:chunk_size=90", "--window", "10"], ["chunk_size"]),
        (["--method", "dca", "--window", "10", "--lengths", "9k"], ["9,216"]),
    ],
)
def test_one_line(run, folder, book, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    given = [{"BOOK": book, "M": folder}.get(arg, arg) for arg in args]
    ran = run("analyze", *given, "--out", "out", *(["--device", "cpu"] if "M" in args else []))
    assert ran.code != 0 and ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("longspan: error: "), ran.err
    assert all(word in lines[0] for word in words), ran.err


def test_out_is_no_file(run, book):
    assert "is a file" in run("analyze", "--method", "dca", "--window", 10, "--out", book).err


def test_the_label_says_what_differs_from_the_default(run, folder, tmp_path):
    args = ["analyze", "--model", folder, "--task", "passkey", "--lengths", "2x", "--samples", 1, "--device", "cpu"]
    ran = run(*args, "--method", "longheads:num_chunks=8,share=group", "--out", tmp_path / "o", "--json")
    body = json.loads(ran.out)
    assert body == json.loads((tmp_path / "o" / "analysis.json").read_text(encoding="utf-8"))
    assert body["method"]["label"] == "longheads:num_chunks=8"
    ran = run(*args, "--method", "longheads:num_chunks=8,share=group", "--out", tmp_path / "o")
    assert "longheads:num_chunks=8, window 128" in ran.out
