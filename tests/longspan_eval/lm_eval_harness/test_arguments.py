"""What ``--model_args`` and ``--metadata`` mean, and how far a method is said to reach; none of it needs lm-eval."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from longspan.bundled import FOLDER, load_bundled
from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan.methods import METHODS
from longspan_eval.lm_eval_harness import cli
from longspan_eval.lm_eval_harness.arguments import row_by_row, row_of, told
from longspan_eval.lm_eval_harness.tasks import SYNTHETIC, prompts, study_of, write_tasks
from longspan_eval.spec import STOCK, parse_spec
from longspan_eval.tasks import TASKS

WINDOW = 64


@pytest.mark.parametrize(
    ("method", "settings", "spec"),
    [
        ("dca", {}, "dca"),
        ("stock", {}, "stock"),
        ("dca", {"chunk_size": 48, "length_scale": 0.1}, "dca:chunk_size=48,length_scale=0.1"),
        ("longheads:score=bounds", {"num_chunks": 8}, "longheads:score=bounds,num_chunks=8"),
        ("dca:window=49", {"angles": "yarn", "factor": 2.0}, "dca:window=49,angles=yarn,factor=2"),
        ("dca", {"angles": "yarn", "factor": 2.5}, "dca:angles=yarn,factor=2.5"),
        ("esa", {"top-k": 3, "calibration": "bundled"}, "esa:top_k=3,calibration=bundled"),
        ("lm-infinite", {"middle_top_k": 5, "from_layer": 1}, "lm-infinite:middle_top_k=5,from_layer=1"),
        ("dca", {"chunk_size": None}, "dca:chunk_size=none"),
        ("dca", {"chunk_size": 1e3}, "dca:chunk_size=1000"),
    ],
)
def test_a_row_as_longspan_eval_writes_it(method, settings, spec):
    found, wanted = row_of(method, settings), parse_spec(spec)
    assert (found.method, found.calibration) == (wanted.method, wanted.calibration)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("magic", {}, ["'magic'", "dca", "stock"]),
        ("dca", {"size": 3}, ["dca has no parameter 'size'", "chunk_size"]),
        ("dca", {"chunk_size": "many"}, ["chunk_size", "'many'"]),
        ("dca:chunk_size=3", {"chunk_size": 4}, ["chunk_size is set twice"]),
        ("dca", {"chunk_size": -1}, ["chunk_size"]),
        ("stock", {"chunk_size": 4}, ["no parameters"]),
        ("esa", {"calibration": "no/such"}, ["no calibration", "no/such"]),
        ("", {}, ["method"]),
    ],
)
def test_what_cannot_be_is_named(method, settings, words):
    with pytest.raises(LongspanError) as raised:
        row_of(method, settings)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("spec", ["yarn", "pi", "ntk", "self-extend", "dca:angles=yarn", "yarn:beta_fast=16"])
def test_methods_that_have_to_know_the_length_ask_for_it(spec):
    row = parse_spec(spec)
    with pytest.raises(LongspanError, match=rf"{spec} must know the longest text: .*length=TOKENS"):
        told(row, None)
    reached = told(row, 4 * WINDOW)
    assert reached.method == row.method.reaching(4 * WINDOW) and told(reached, None) == reached


@pytest.mark.parametrize(
    "spec", [STOCK, "dca", "longheads", "esa", "dynamic-ntk", "yarn:factor=2", "self-extend:group=4", "pi:scale=3"]
)
def test_others_do_not(spec):
    row = parse_spec(spec)
    assert told(row, None) == row and told(row, 999).method == row.method


@pytest.mark.parametrize("length", [0, -1, 1.5, "4096", True])
def test_a_length_that_is_none(length):
    with pytest.raises(LongspanError, match="length must be a number of tokens"):
        told(parse_spec("dca"), length)


@pytest.mark.parametrize("spec", ["pi:scale=3", "ntk:scale=4", "yarn:factor=2.5", "pi:scale=1"])
def test_scaled_angles_reach_so_many_windows(spec):
    method = parse_spec(spec).method.resolve(WINDOW)
    scale = float(spec.partition("=")[2])
    assert method.longest(WINDOW) == scale * WINDOW


@pytest.mark.parametrize("name", ["pi", "ntk", "yarn", "self-extend"])
@pytest.mark.parametrize("length", [32, 64, 65, 100, 256, 1000])
def test_a_method_that_was_told_a_length_reaches_it(name, length):
    method = told(parse_spec(name), length).method.resolve(WINDOW)
    assert method.longest(WINDOW) >= max(length, WINDOW)
    if name != "self-extend":
        assert method.longest(WINDOW) == max(length, WINDOW)


@pytest.mark.parametrize(
    "spec",
    ["self-extend:group=4", "self-extend:group=3,neighbors=10", "self-extend:group=5,neighbors=63", "string",
     "string:shift=30,local=7", "string:shift=64,local=0"],
)  # fmt: skip
def test_at_the_reach_and_not_beyond_it_positions_are_trained_ones(spec):
    method = parse_spec(spec).method.resolve(WINDOW)
    limit = method.longest(WINDOW)

    def farthest(total):
        rows, keys = torch.arange(total)[:, None], torch.arange(total)[None]
        return int(torch.where(keys <= rows, method.positions(WINDOW).rel(rows, keys), 0).max())

    assert farthest(limit) <= WINDOW - 1 < farthest(limit + method.parameters().get("group", 1))


def test_only_those_have_a_limit():
    limited = {name for name, kind in METHODS.items() if kind().resolve(WINDOW).longest(WINDOW) is not None}
    assert limited == {"pi", "ntk", "yarn", "self-extend", "string"}
    assert parse_spec("dca:angles=yarn,factor=4").method.resolve(WINDOW).longest(WINDOW) is None


def test_which_methods_would_see_the_padding_of_a_batch():
    told = {name for name, kind in METHODS.items() if row_by_row(kind().resolve(WINDOW))}
    assert told == {"dynamic-ntk", "esa", "infllm"}
    assert row_by_row(parse_spec("dca:length_scale=0.1").method) and not row_by_row(parse_spec("dca").method)


# ---------------------------------------------------------------- tasks


def test_every_made_task_has_a_name_and_a_file(tmp_path):
    write_tasks(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(SYNTHETIC)
    assert {task.name for task in SYNTHETIC.values()} == {task.name for task in TASKS.values() if task.data is None}
    text = (tmp_path / "longspan_passkey.yaml").read_text()
    assert text.splitlines() == [
        "task: longspan_passkey",
        "class: !function longspan_eval.lm_eval_harness.synthetic.SyntheticTask",
        "tag: longspan",
    ]
    assert "tag" not in (tmp_path / "longspan_infinitebench-kv-official.yaml").read_text()


@pytest.fixture(scope="module")
def tokenizer():
    return load_bundled()[1]


@pytest.mark.parametrize("name", [name for name in SYNTHETIC if not name.endswith("-official")])
def test_prompts_are_those_of_longspan_eval(name, tokenizer):
    task = SYNTHETIC[name]
    study = study_of(task, {"max_seq_lengths": [3000, 3500], "samples": 2, "seed": 5, "depths": 3, "pretrained": "x"})
    made = list(prompts(study, tokenizer))
    depths = (0, 0.5, 1) if task.at_depths else (None,)
    wanted = [
        (length, task.build(tokenizer, length=length, seed=seed, depth=depth))
        for seed, depth in [(5 + n, depths[n % len(depths)]) for n in range(2 * len(depths))]  # a seed each
        for length in (3000, 3500)
    ]
    assert made == wanted
    assert all(len(example.input_ids) == length - task.new_tokens for length, example in made)


def test_what_metadata_says_by_itself(tokenizer):
    study = study_of(SYNTHETIC["longspan_passkey"], {})
    assert (study.lengths, study.samples, study.depths, study.seed) == ((4096,), 50, None, 0)
    assert study_of(SYNTHETIC["longspan_passkey"], {"max_seq_lengths": 512, "depths": 2}).lengths == (512,)
    assert study_of(SYNTHETIC["longspan_ruler-vt"], {"depths": 2}).depths is None


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"max_seq_lengths": "4k"}, ["max_seq_lengths", "'4k'"]),
        ({"max_seq_lengths": [512, 1e3]}, ["max_seq_lengths", "1000.0"]),
        ({"max_seq_lengths": []}, ["at least one length"]),
        ({"max_seq_lengths": [512, 512]}, ["512 is listed twice"]),
        ({"max_seq_lengths": [0]}, ["lengths", "at least 1"]),
        ({"samples": 0}, ["samples", "at least 1"]),
        ({"samples": True}, ["samples", "True"]),
        ({"depths": "three"}, ["depths", "'three'"]),
        ({"seed": None}, ["seed", "None"]),
        ({"max_seq_lengths": [512, 64]}, ["passkey at 64 tokens", "takes"]),
    ],
)
def test_metadata_that_cannot_be(metadata, words, tokenizer):
    with pytest.raises(LongspanError) as raised:
        list(prompts(study_of(SYNTHETIC["longspan_passkey"], metadata), tokenizer))
    assert all(word in str(raised.value) for word in words), raised.value


# ---------------------------------------------------------------- command line


def test_without_lm_eval_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("longspan_eval.lm_eval_harness.cli.find_spec", lambda name: None)
    monkeypatch.setattr("longspan.signals.install", lambda program: None)  # this process goes on
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    assert stopped.value.code == 1 and out == ""
    assert err == f"longspan-lm-eval: error: lm-eval is missing: {pip_install('lm-eval')}\n"


def parsed(**given):
    return Namespace(**{"model": "longspan", "model_args": None, "include_path": None, "device": None, **given})


def test_what_is_changed_for_lm_eval():
    args = parsed(model_args={"pretrained": "bundled", "method": "dca"}, include_path="mine")
    cli.prepare(args, {}, "ours")
    assert args.include_path == ["ours", "mine"] and args.device == "auto"
    assert args.model_args == {"pretrained": str(FOLDER), "method": "dca"}


def test_what_the_config_file_says_is_kept():
    args = parsed(model=None)
    file = {"model": "longspan", "include_path": "mine", "device": "cpu", "model_args": {"pretrained": "bundled"}}
    cli.prepare(args, file, "ours")
    assert args.include_path == ["ours", "mine"] and args.device is None
    assert args.model_args == {"pretrained": str(FOLDER)}


def test_other_models_are_left_alone():
    args = parsed(model="hf", model_args={"pretrained": "some/name"})
    cli.prepare(args, {}, "ours")
    assert args.device is None and args.model_args == {"pretrained": "some/name"}
    listing = Namespace(include_path=None)
    cli.prepare(listing, {}, "ours")
    assert vars(listing) == {"include_path": ["ours"]}
