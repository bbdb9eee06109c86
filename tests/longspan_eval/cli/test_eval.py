"""``longspan eval`` as a user runs it: killed and taken up again, and one line for whatever is wrong."""

from __future__ import annotations

import json
import time
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from longspan.bundled import heldout_text
from longspan.cli import main
from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan_eval.cli.eval_options import check_spec, parse_lengths
from longspan_eval.datafile import SAMPLES
from longspan_eval.journal import Journal
from longspan_eval.spec import MethodSpec, parse_spec, split_specs
from longspan_eval.subject import Subject
from longspan_eval.tasks import TASKS
from longspan_eval.windows import STANDARD
from longspan_eval.workers import _context
from support.command_line import refused

OPTIONS = (
    "--methods",
    "dca,longheads:score=bounds,num_chunks=8",
    "--lengths",
    "128,2x",
    "--samples",
    "3",
    "--depths",
    "3",
)


def command(folder, out, *more):
    return ["eval", "passkey", "--model", str(folder), *OPTIONS, "--device", "cpu", "--out", str(out), *more]


def results(out):
    """What results.json says, but for times."""
    body = json.loads((out / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    return body | {"cells": [{k: v for k, v in cell.items() if k != "seconds"} for cell in body["cells"]]}


def alone(args):
    """A run as a process of its own."""
    process = _context().Process(target=main, args=(args,))
    process.start()
    return process


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """A run that nothing disturbed, in this process."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.raises(SystemExit) as stopped:
        main(command(folder, out))
    assert not stopped.value.code
    return out


@pytest.mark.long
def test_where_keys_lie_changes_no_sample(whole, folder, tmp_path, run):
    ran = run(*command(folder, tmp_path, "--kv-tier", "auto"))
    assert ran.code == 0, ran.err
    environment = results(whole)["environment"] | {"kv_tier": "auto"}
    assert results(tmp_path) == results(whole) | {"command": results(tmp_path)["command"], "environment": environment}
    assert results(tmp_path)["command"].endswith("--kv-tier auto")
    ran = run(*command(folder, tmp_path / "other", "--kv-tier", "tape"))
    assert ran.code == 1 and "kv_tier must be one of auto, device, host, disk, not 'tape'" in ran.err


@pytest.mark.long
def test_killed_and_taken_up_again_the_results_are_the_same(whole, folder, tmp_path, run):
    path = tmp_path / "samples.jsonl"
    process = alone(command(folder, tmp_path, "--workers", "2"))
    until = time.monotonic() + 120
    while time.monotonic() < until and (not path.exists() or path.read_bytes().count(b"\n") < 15):
        time.sleep(0.002)
    process.kill()  # SIGKILL: nothing is tidied up
    process.join()
    before = path.read_bytes()
    assert 15 <= before.count(b"\n") < 54, "it was to be killed in the middle"
    ran = run(*command(folder, tmp_path))
    assert ran.code == 0, ran.err
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 3 * 2 * 9
    assert results(tmp_path) == results(whole)
    assert (tmp_path / "summary.md").read_text() == (whole / "summary.md").read_text()


@pytest.mark.long
def test_what_it_leaves(whole):
    assert {path.name for path in whole.iterdir()} == {
        "samples.jsonl", "results.json", "summary.md", "scores.png", "heatmap-passkey.png",
    }  # fmt: skip
    body = results(whole)
    assert [cell["row"] for cell in body["cells"][::2]] == ["stock", "dca", "longheads:num_chunks=8,score=bounds"]
    assert {cell["length"] for cell in body["cells"]} == {128, 256}
    assert all(cell["n"] == 9 and cell["error"] is None and len(cell["depths"]) == 3 for cell in body["cells"])
    assert (
        "--methods dca,longheads:score=bounds,num_chunks=8 --lengths 128,2x --samples 3 --depths 3" in body["command"]
    )
    samples = [json.loads(line) for line in (whole / "samples.jsonl").read_text().splitlines()]
    assert {(s["tokens"], s["length"]) for s in samples} == {(120, 128), (248, 256)}
    assert all(s["task"] == "passkey" and s["depth"] in (0, 0.5, 1) and len(s["answer"]) == 5 for s in samples)


def test_the_table_is_on_stdout_and_all_else_on_stderr(whole, run, folder):
    ran = run(*command(folder, whole))
    assert ran.out == (whole / "summary.md").read_text()
    assert "0 prompts to ask" in ran.err and "heatmap-passkey.png" in ran.err


def test_a_window_of_ones_own_is_attached_with(run, no_window, tmp_path):
    ran = run("eval", "passkey", "--model", no_window, "--window", "64", "--lengths", "2x", "--samples", "2",
              "--device", "cpu", "--out", tmp_path)  # fmt: skip
    assert ran.code == 0, ran.err
    body = results(tmp_path)
    assert body["model"]["window"] == 64 and body["rows"]["dca"]["128"]["chunk_size"] == 48
    assert [(cell["length"], cell["n"]) for cell in body["cells"]] == [(128, 2), (128, 2)]


def test_a_row_that_cannot_be_at_one_length_is_left_to_its_cell(folder, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(folder)
    subject, row = Subject.of(model), parse_spec("dca")
    attached = []
    monkeypatch.setattr(MethodSpec, "attach", lambda self, model, length, window, **more: attached.append(length))
    monkeypatch.setattr(MethodSpec, "parameters", lambda self, window, length: {"error": "why"} if length < 200 else {})
    check_spec(row, model, subject, [128, 256], None, "device")
    assert attached == [256]
    with pytest.raises(LongspanError, match="^dca: why"):
        check_spec(row, model, subject, [128, 129], None, "device")


def test_a_second_run_into_the_same_folder_is_refused(run, folder, whole):
    with Journal(whole / "samples.jsonl"):
        ran = run(*command(folder, whole))
    assert ran.code == 1 and "another run" in ran.err


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "book.txt"
    path.write_text(heldout_text()[:4000], encoding="utf-8")
    return path


def sliding(folder, book, out, *more):
    return ["eval", "perplexity", "--model", folder, "--text", book, "--methods", "dca,rerope", "--lengths", "1x,192",
            "--stride", "64", "--device", "cpu", "--out", out, *more]  # fmt: skip


def test_perplexity_taken_up_again_is_the_same(run, folder, book, tmp_path):
    part, whole = tmp_path / "part", tmp_path / "whole"
    first = run(*sliding(folder, book, part, "--samples", "2"))
    assert first.code == 0, first.err
    assert "windows of " in first.err and "book.txt" in first.err and "12 prompts to ask" in first.err
    lines = (part / "samples.jsonl").read_bytes()
    (part / "samples.jsonl").write_bytes(lines[:-20])  # killed while it wrote the last one
    again, undisturbed = (run(*sliding(folder, book, out, "--samples", "4")) for out in (part, whole))
    assert again.code == undisturbed.code == 0 and "13 prompts to ask" in again.err
    assert results(part) == results(whole)
    assert again.out == undisturbed.out == (whole / "summary.md").read_text()
    assert {path.name for path in whole.iterdir()} == {"samples.jsonl", "results.json", "summary.md", "scores.png"}
    body = results(whole)
    assert [(cell["row"], cell["length"], cell["n"]) for cell in body["cells"]] == [
        (row, length, 4) for row in ("stock", "dca", "rerope") for length in (128, 192)
    ]
    scores = [cell["score"] for cell in body["cells"]]
    assert scores[2] == pytest.approx(scores[0], rel=1e-5), "in the window dca changes nothing"
    assert scores[2] != scores[3] and all(score > 1 for score in scores)
    assert all(cell["interval"][0] < cell["score"] < cell["interval"][1] for cell in body["cells"])
    assert "--text " in body["command"] and "--stride 64" in body["command"] and "--mode " not in body["command"]


def test_a_run_that_is_refused_leaves_the_text_from_stdin_that_another_one_reads(run, folder, tmp_path, monkeypatch):
    texts = [heldout_text()[:4000], heldout_text()[4000:8000]]
    with Journal(tmp_path / "samples.jsonl"):
        for n, text in enumerate(texts):
            monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode()), encoding="utf-8"))
            assert "another run" in run(*sliding(folder, "-", tmp_path)).err
            assert {path.read_text() for path in tmp_path.glob("stdin*.txt")} == set(texts[: n + 1])


@pytest.mark.long
def test_perplexity_without_a_text_says_which_it_reads(run, folder, tmp_path):
    ran = run("eval", "perplexity", "--model", folder, "--lengths", "1x", "--samples", "1", "--methods", "stock",
              "--stride", "20", "--mode", "whole", "--device", "cpu", "--out", tmp_path)  # fmt: skip
    assert ran.code == 0, ran.err
    assert STANDARD in ran.err and STANDARD in ran.out
    assert "--stride 20 --mode whole" in ran.out and "n=1" in ran.out


def test_list(run):
    ran = run("eval", "--list")
    assert ran.code == 0 and all(name in ran.out for name in [*TASKS, "perplexity", "--text"])
    assert "eval" in run("--help").out


BAD = {
    "no task": ([], ["at least one task", "--list"]),
    "an unknown task": (["pass-key"], ["'pass-key'", "--list"]),
    "a pattern of nothing": (["zz*"], ["'zz*'", "--list"]),
    "a task twice": (["passkey", "pass*", "--model", "FOLDER"], ["passkey is listed twice"]),
    "no model": (["passkey"], ["--model"]),
    "an unknown model": (["passkey", "--model", "./no/where"], ["model folder does not exist"]),
    "an unknown method": (["passkey", "--model", "FOLDER", "--methods", "dca,magic"], ["'magic'", "dca"]),
    "a method twice": (["passkey", "--model", "FOLDER", "--methods", "dca,dca"], ["'dca' is listed twice"]),
    "a bad parameter": (["passkey", "--model", "FOLDER", "--methods", "dca:size=1"], ["'size'", "chunk_size"]),
    "one that cannot be": (
        ["passkey", "--model", "FOLDER", "--methods", "dca:window=129"],
        ["dca:window=129", "window"],
    ),
    "a length of nonsense": (["passkey", "--model", "FOLDER", "--lengths", "4k,many"], ["--lengths", "'many'"]),
    "a length of nothing": (["passkey", "--model", "FOLDER", "--lengths", "0"], ["--lengths", "'0'"]),
    "a length twice": (["passkey", "--model", "FOLDER", "--lengths", "1k,1024"], ["1024 is listed twice"]),
    "a short length": (["passkey", "--model", "FOLDER", "--lengths", "1k,64"], ["passkey at 64 tokens", "task takes"]),
    "no samples": (["passkey", "--model", "FOLDER", "--samples", "0"], ["--samples"]),
    "no depths": (["passkey", "--model", "FOLDER", "--depths", "0"], ["--depths"]),
    "no workers": (["passkey", "--model", "FOLDER", "--workers", "0"], ["--workers"]),
    "no time": (["passkey", "--model", "FOLDER", "--max-full-seconds", "0"], ["max_full_seconds", "above 0"]),
    "data for nothing": (
        ["passkey", "needle", "--model", "FOLDER", "--data-dir", "."],
        ["--data-dir", "no task among passkey, needle reads a data file", "--list"],
    ),
    "data for a text": (["perplexity", "--model", "FOLDER", "--data-dir", "."], ["--data-dir", "among perplexity"]),
    "workers of a cluster": (
        ["passkey", "--model", "FOLDER", "--ray", "local", "--workers", "1"],
        ["--workers", "Ray cluster", "leave it out"],
    ),
    "an unknown device": (["passkey", "--model", "FOLDER", "--device", "moon"], ["moon"]),
    "an unknown dtype": (["passkey", "--model", "FOLDER", "--dtype", "int4"], ["int4"]),
    "no rotary positions": (["passkey", "--model", "NOT_ROPE"], ["position"]),
    "a text for nothing": (
        ["passkey", "--model", "FOLDER", "--text", "taken", "--stride", "9"],
        ["--text, --stride", "only perplexity"],
    ),
    "a text that is short": (["perplexity", "--model", "FOLDER", "--text", "taken"], ["taken", "tokens", "1,024"]),
    "a mode that is none": (["perplexity", "--model", "FOLDER", "--mode", "old"], ["new or whole", "'old'"]),
    "a stride too wide": (["perplexity", "--model", "FOLDER", "--stride", "1024"], ["perplexity at 1,024", "1025"]),
    "no stride": (["perplexity", "--model", "FOLDER", "--stride", "0"], ["--stride"]),
    "a strange option": (["passkey", "--model", "FOLDER", "--magic"], ["--magic"]),
}


@pytest.mark.parametrize("case", BAD)
def test_one_line(run, folder, not_rope, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    args, words = BAD[case]
    given = ["--lengths", "1k"] if "--lengths" not in args else []
    ran = run("eval", *[{"FOLDER": folder, "NOT_ROPE": not_rope}.get(arg, arg) for arg in args], *given)
    refused(ran, *words)
    assert ran.err.startswith("longspan: error: ")
    assert not Path("longspan-eval", "samples.jsonl").exists()


@pytest.fixture
def unloaded(monkeypatch):
    """A command that loads a model fails."""

    def load(*args, **more):
        raise LongspanError("the model was loaded")

    monkeypatch.setattr("longspan_eval.cli.eval.load_model", load)


UNREADABLE = {
    "no folder named": (["longbench-trec"], ["longbench/trec.jsonl", "--data-dir"]),
    "no folder": (["longbench-trec", "--data-dir", "no/such"], ["no/such", "this folder does not exist"]),
    "no file": (["longbench-trec", "--data-dir", "."], ["trec.jsonl", "this file does not exist"]),
    "a fault in a line": (["leval-toefl", "--data-dir", "."], ["tpo.jsonl, line 1", "field 'instructions'"]),
    "no text": (["perplexity", "--text", "none.txt"], ["none.txt", "cannot be read"]),
    "a file for a folder": (["passkey", "--out", "blank.txt"], ["--out blank.txt", "is a file; name a folder"]),
    "a text of nothing": (["perplexity", "--text", "blank.txt"], ["blank.txt", "no text"]),
    "a text of bytes": (["perplexity", "--text", "bytes.txt"], ["bytes.txt", "not UTF-8"]),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_is_wrong_with_a_file_is_found_before_a_model_is_loaded(run, unloaded, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("leval").mkdir()
    Path("leval/tpo.jsonl").write_text('{"input": "a"}\n')
    Path("blank.txt").write_text(" \n")
    Path("bytes.txt").write_bytes(b"a\xff")
    args, words = UNREADABLE[case]
    ran = run("eval", *args, "--model", "bundled")
    refused(ran, *words)
    assert ran.code == 1 and ran.err.startswith("longspan: error: ")


def test_with_whole_files_the_model_is_what_comes_next(run, unloaded):
    ran = run("eval", "longbench-trec", "--data-dir", SAMPLES, "--model", "bundled")
    assert ran.code == 1 and "the model was loaded" in ran.err


def test_seconds_of_another_run_are_not_reported_as_this_runs(run, folder, tmp_path):
    def cells(*more):
        ran = run("eval", "passkey", "--model", folder, "--methods", "stock", "--lengths", "1x", "--samples", "1",
                  "--device", "cpu", "--out", tmp_path, *more)  # fmt: skip
        assert ran.code == 0, ran.err
        ((cell),) = json.loads((tmp_path / "results.json").read_text())["cells"]
        return cell, ran

    first, _ = cells("--threads", "1")
    lines = (tmp_path / "samples.jsonl").read_bytes()
    assert first["n"] == first["timed"] == 1 and first["seconds"] > 0
    other, ran = cells("--threads", "2")
    assert "0 prompts to ask" in ran.err and (tmp_path / "samples.jsonl").read_bytes() == lines
    assert other["n"] == 1 and other["timed"] == 0 and other["seconds"] is None and "leave out 1 of 1" in ran.out
    assert cells("--threads", "1", "--kv-tier", "host")[0]["seconds"] is None
    assert cells("--threads", "1")[0]["seconds"] == pytest.approx(first["seconds"], abs=1e-4), "they are kept rounded"


def test_a_missing_ray_is_one_line(run, folder, monkeypatch):
    monkeypatch.setattr("longspan_eval.ray_workers.find_spec", lambda name: None)
    ran = run("eval", "passkey", "--model", folder, "--ray", "local")
    assert ran.code == 1 and ran.err.startswith("longspan: error: Ray is missing") and pip_install("ray") in ran.err


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("4096", (4096,)),
        ("4k,16K", (4096, 16384)),
        ("1x, 2.5x,100", (128, 320, 100)),
        ("0.5k", (512,)),
        ("1M,0.3x", (1 << 20, 38)),
    ],
)
def test_lengths(text, lengths):
    assert parse_lengths(text, 128) == lengths


@pytest.mark.parametrize("text", ["", "k", "4kk", "-4k", "nan", "inf", "1e99", "4k,", "0x", "1e3", "1.5"])
def test_lengths_that_cannot_be(text):
    with pytest.raises(LongspanError, match="--lengths takes tokens"):
        parse_lengths(text, 128)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("stock,yarn,dca", ["stock", "yarn", "dca"]),
        ("dca:chunk_size=9,angles=yarn,esa", ["dca:chunk_size=9,angles=yarn", "esa"]),
        ("longheads:score=bounds,esa:top_k=3,share=group", ["longheads:score=bounds", "esa:top_k=3,share=group"]),
        ("esa:top_k=3,calibration=C:/x", ["esa:top_k=3,calibration=C:/x"]),
        ("dca,,esa", ["dca", "", "esa"]),
    ],
)
def test_rows_in_one_text(text, rows):
    assert split_specs(text) == rows
