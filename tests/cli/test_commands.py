"""The commands doing what they are for, on tiny models and the bundled one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import longspan
from longspan.cli.commands import app
from longspan.documents import writing
from longspan.methods import METHODS
from support.token_texts import without_first_space


def test_help_names_every_command(run):
    ran = run("--help")
    assert ran.code == 0
    for command in ("demo", "generate", "methods", "inspect"):
        assert command in ran.out
    assert run().out == ran.out


def test_methods_lists_all(run):
    ran = run("methods")
    assert ran.code == 0 and all(name in ran.out for name in METHODS)
    rows = json.loads(run("methods", "--json").out)
    assert [row["name"] for row in rows] == list(METHODS)
    assert all(row["what"] and row["paper"] for row in rows)
    resolved = {row["name"]: row["parameters"] for row in json.loads(run("methods", "--json", "--window", 512).out)}
    assert resolved["dca"]["chunk_size"] == 384 and resolved["pi"]["scale"] == 4


@pytest.mark.parametrize("name", METHODS)
def test_inspect(run, folder, name):
    ran = run("inspect", folder, "--method", name)
    assert ran.code == 0 and ran.err == "" and "128 tokens" in ran.out and "layers 0-1" in ran.out
    report = json.loads(run("inspect", folder, "--method", name, "--json").out)
    assert report["method"] == name and len(report["attached"]) == 2 and report["kv_bytes_per_token"] > 0


def test_inspect_takes_window_settings_and_angles(run, folder):
    args = [
        "--method",
        "dca",
        "--window",
        256,
        "--set",
        "chunk_size=100",
        "--set",
        "length-scale=0.05",
        "--angles",
        "yarn",
        "--set",
    ]
    report = json.loads(run("inspect", folder, *args, "factor=2", "--json").out)
    assert report["window"] == 256
    assert report["parameters"]["chunk_size"] == 100 and report["parameters"]["length_scale"] == 0.05
    assert report["angles"]["name"] == "YaRN" and report["angles"]["factor"] == 2


def test_the_help_of_inspect_names_the_methods_that_a_length_sets(run, folder):
    set_for = [name for name, cls in METHODS.items() if cls().reaching(10_000) != cls()]
    (said,) = (one.help for one in typer.main.get_command(app).commands["inspect"].params if one.name == "length")
    assert said.endswith(f"{', '.join(set_for[:-1])} and {set_for[-1]} are set for it.")
    report = json.loads(run("inspect", folder, "--method", "yarn", "--length", 1024, "--json").out)
    assert report["angles"]["factor"] == 8


def test_settings_reach_the_angles_of_a_method_that_is_its_angles(run, folder):
    report = json.loads(run("inspect", folder, "--method", "pi", "--set", "scale=8", "--json").out)
    assert report["angles"]["scale"] == 8


@pytest.mark.parametrize("name", ["dca", "self-extend", "pi", "streaming-llm"])
def test_generate_answers_as_the_library_does(run, folder, tmp_path, name):
    (tmp_path / "book.txt").write_text("Rivers run to the sea. " * 60, encoding="utf-8")
    ran = run(
        "generate", "--model", folder, "--file", tmp_path / "book.txt", "--prompt", "Where do rivers run?",
        "--method", name, "--max-new-tokens", 12, "--device", "cpu",
    )  # fmt: skip
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = (tmp_path / "book.txt").read_text() + "\nWhere do rivers run?"
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    tokens = inputs["input_ids"].shape[1]
    assert tokens > 2 * 128
    longspan.extend(model, longspan.METHODS[name]().reaching(tokens + 12))
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert ran.code == 0 and ran.out.rstrip("\n") == answer.rstrip("\n")
    assert name in ran.err and f"{inputs['input_ids'].shape[1]:,} tokens" in ran.err


def test_generate_names_all_of_what_auto_chose(run, folder, tmp_path):
    """``esa`` alone chooses for a layer, and its answers are others."""
    (tmp_path / "book.txt").write_text("Rivers run to the sea. " * 400, encoding="utf-8")
    ask = ["--model", folder, "--file", tmp_path / "book.txt", "--prompt", "Where?", "--max-new-tokens", 3, "--json"]
    ran = run("generate", *ask, "--method", "auto")
    method = json.loads(ran.out)["method"]
    assert method.startswith("esa:") and "share=group" in method and method in ran.err
    assert json.loads(run("generate", *ask, "--method", method).out)["method"] == method


def test_generate_uses_a_chat_template(run, folder, tmp_path):
    path = tmp_path / "chat"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}<<{{ m.content }}>>{% endfor %}"
    tokenizer.save_pretrained(path)
    ask = ["generate", "--model", path, "--prompt", "Hello there", "--max-new-tokens", 3, "--method", "dca"]
    with_template, without = (run(*ask, *extra).err.split(" tokens")[0] for extra in ([], ["--no-chat"]))
    assert int(with_template) > int(without)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_return_sequences": 2, "do_sample": True},
        {"return_dict_in_generate": True},
        {"stop_strings": ["not in it"]},
        {"prompt_lookup_num_tokens": 3},
    ],
)
def test_one_greedy_answer_whatever_the_generation_config_says(run, folder, tmp_path, options):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config.update(**options)
    (path := tmp_path / "model").mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    (path / "generation_config.json").write_text(json.dumps(model.generation_config.to_diff_dict()))
    ask = ["--prompt", "Where do rivers run?", "--max-new-tokens", 6, "--json"]
    expected, ran = (run("generate", "--model", where, *ask) for where in (folder, path))
    assert ran.code == 0 and json.loads(ran.out)["answer"] == json.loads(expected.out)["answer"]
    (tmp_path / "text.txt").write_text("Rivers run to the sea. " * 9)
    assert run("read", tmp_path / "text.txt", "--model", path, "--out", tmp_path / "read", "--method", "dca").code == 0
    asked = run("ask", tmp_path / "read", "Where do rivers run?", "--max-new-tokens", 6, "--json")
    assert asked.code == 0 and len(json.loads(asked.out)["tokens"]) == 6


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_does_not_obey_an_answer(run, folder, monkeypatch, terminal):
    monkeypatch.setattr("longspan.text.detokenize.IncrementalDetokenizer.add", lambda self, token: "a\x1b[2Jb")
    monkeypatch.setattr("longspan.text.detokenize.IncrementalDetokenizer.end", lambda self: "")
    monkeypatch.setattr("longspan.cli.ask.sys", SimpleNamespace(stdout=(out := StringIO())))
    out.isatty = lambda: terminal
    ran = run("generate", "--model", folder, "--prompt", "Hello", "--max-new-tokens", 1)
    assert ran.code == 0 and out.getvalue() == ("a\\x1b[2Jb\n" if terminal else "a\x1b[2Jb\n")


def test_what_is_printed_is_the_answer(run, folder, tmp_path, monkeypatch):
    """Also of a tokenizer that leaves out the space that a text, and each line by itself, begins with."""
    tokenizer, text = AutoTokenizer.from_pretrained(folder), "on:\n    if x:\n  - é"
    without_first_space(tokenizer).save_pretrained(path := shutil.copytree(folder, tmp_path / "model"))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    following = iter(ids * 2)
    monkeypatch.setitem(writing.ONE_ANSWER, "prefix_allowed_tokens_fn", lambda row, so_far: [next(following)])
    ask = ["generate", "--model", path, "--prompt", "Hello", "--max-new-tokens", len(ids)]
    assert run(*ask).out == text + "\n" and json.loads(run(*ask, "--json").out)["answer"] == text


def test_model_and_prompt_are_given_by_place_or_by_option(run, folder):
    ask = ["--max-new-tokens", 3, "--quiet"]
    ways = [[folder, "Hello"], ["--model", folder, "Hello"], [folder, "--prompt", "Hello"]]
    expected = run("generate", "--model", folder, "--prompt", "Hello", *ask)
    assert expected.code == 0 and expected.out.strip()
    assert all(run("generate", *way, *ask) == expected for way in ways)


def test_generate_in_bfloat16(run, folder):
    ran = run("generate", "--model", folder, "--prompt", "Hello", "--dtype", "bfloat16", "--max-new-tokens", 4)
    assert ran.code == 0


def test_the_bundled_model_finds_a_pass_key_in_a_file(run, tmp_path):
    from longspan.bundled import heldout_text

    prose = heldout_text()[:4000]
    needle = "\nThe pass key is 71093. Remember it. 71093 is the pass key.\n"
    task = (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.\n"
    )
    (tmp_path / "book.txt").write_text(f"{task}{prose[:1200]}{needle}{prose[1200:]}")
    ran = run(
        "generate", "--model", "bundled", "--file", tmp_path / "book.txt", "--max-new-tokens", 8,
        "--prompt", "What is the pass key? The pass key is", "--method", "dca",
    )  # fmt: skip
    assert ran.code == 0 and int(ran.err.split(" tokens")[0].replace(",", "")) > 2 * 512
    assert ran.out.strip().startswith("71093")


def test_generate_without_a_gpu_records_no_step(run):
    ask = ["generate", "--model", "bundled", "--device", "cpu", "--prompt", "There once was a river."]
    refused = run(*ask, "--graphed")
    assert refused.code == 1 and not refused.out
    assert "the model is on cpu" in refused.err and "--no-graphed" in refused.err and "Traceback" not in refused.err
    assert run(*ask, "--no-graphed", "--max-new-tokens", 2).code == 0


def test_the_app_works_under_typers_own_runner():
    result = CliRunner().invoke(app, ["methods", "--json"])
    assert result.exit_code == 0 and len(json.loads(result.stdout)) == len(METHODS)


@pytest.mark.long
def test_as_a_process_bad_input_gives_one_line():
    code = "from longspan.cli import main; main(['inspect', './nowhere'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr == "longspan: error: ./nowhere: this model folder does not exist\n"


@pytest.mark.long
def test_as_a_process_the_answer_alone_is_on_stdout(folder):
    code = f"from longspan.cli import main; main(['generate', '--model', {str(folder)!r}, '--prompt', 'Hello', "
    code += "'--max-new-tokens', '5', '--device', 'cpu'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and "window 128" in ran.stderr and "window" not in ran.stdout
