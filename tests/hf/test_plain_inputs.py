"""Inputs that are nearly right: numpy's integers, empty inputs, names of folders, positions that are no tensor."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import get_type_hints

import numpy as np
import pytest
import torch

import longspan
from longspan import files
from longspan.bundled import FOLDER
from longspan.cli import main
from longspan.errors import LongspanError, check_count
from support.hf_models import make, prompts

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize("value", [np.int64(64), np.int32(64), np.uint8(64), torch.tensor(64)])
def test_what_stands_for_an_integer_is_one(value):
    found = check_count("window", value)
    assert found == 64 and type(found) is int


@pytest.mark.parametrize("value", [True, np.bool_(True), 64.0, np.float64(64), "64", None, np.array([64, 64])])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(LongspanError, match="window must be an integer number of tokens"):
        check_count("window", value)


def test_numbers_of_numpy_are_held_as_python_has_them():
    method = longspan.LongHeads(num_chunks=np.int64(8), angles=longspan.YaRN(factor=np.float32(4)))
    assert method == longspan.LongHeads(num_chunks=8, angles=longspan.YaRN(factor=4.0))
    assert type(method.num_chunks) is int and type(method.angles.factor) is float
    assert type(longspan.PI(target_length=np.int64(512)).target_length) is int
    assert type(longspan.NTK(scale=Fraction(5, 2)).scale) is float
    assert type(longspan.DCA().resolve(np.int64(64)).window) is int
    assert type(longspan.SelfExtend().resolve(np.int64(64)).group) is int
    report = longspan.inspect(make("llama"), "dca", window=np.int64(64), length=np.int64(256))
    assert report.window == 64 and type(report.window) is int
    json.dumps(report.to_dict())
    with pytest.raises(ValueError, match="num_chunks must be an integer, not"):
        longspan.LongHeads(num_chunks=np.bool_(True))


def test_a_name_that_ends_like_a_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (lambda path: files.write(path, "x"), files.check):
        with pytest.raises(IsADirectoryError, match="must not end in /.*newdir/"):
            call("newdir/")
        with pytest.raises(OSError, match="the file's name is empty"):
            call("")
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            call("there/")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_only_public_names_are_listed():
    listed = [name for name in dir(longspan) if not (name.startswith("__") and name.endswith("__"))]
    assert listed == sorted(longspan.__all__)


@pytest.mark.parametrize("name", sorted(set(longspan.__all__) - {"METHODS"}))
def test_annotations_can_be_looked_up(name):
    get_type_hints(getattr(longspan, name))


@pytest.mark.parametrize("shape", [(1, 0), (0, 5), (0, 0)])
def test_an_input_without_tokens(shape):
    model = make("llama")
    longspan.extend(model, "dca")
    with torch.no_grad():
        with pytest.raises(LongspanError, match=r"the input has no tokens: input_ids is \["):
            model(torch.zeros(shape, dtype=torch.int64))
        with pytest.raises(LongspanError, match=r"the input has no tokens: inputs_embeds is \["):
            model(inputs_embeds=torch.zeros(*shape, 64))
        assert model(prompts(1, 70)).logits.shape[1] == 70


@pytest.mark.parametrize("positions", [list(range(20)), [list(range(20))], range(20), np.arange(20)[None]])
def test_positions_that_are_no_tensor(positions):
    model = make("llama")
    longspan.extend(model, "dca")
    with torch.no_grad(), pytest.raises(LongspanError, match=r"position_ids are a \w+, not a tensor \[batch, tokens\]"):
        model(prompts(2, 20), position_ids=positions)


@pytest.mark.parametrize("rows", [0, 3])
def test_positions_of_another_batch(rows):
    model = make("llama")
    longspan.extend(model, "dca")
    with torch.no_grad(), pytest.raises(LongspanError, match=rf"position_ids are \[{rows}, 20\].*batch has 2 rows"):
        model(prompts(2, 20), position_ids=torch.arange(20).repeat(rows, 1))
    with torch.no_grad(), pytest.raises(LongspanError, match=r"position_ids are \[\], and the batch has 2 rows"):
        model(prompts(2, 20), position_ids=torch.tensor(0))


def inspected(capsys, *options):
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(FOLDER), "--json", "-q", *options])
    assert not stopped.value.code
    return json.loads(capsys.readouterr().out)


def refused(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    assert stopped.value.code
    return " ".join(capsys.readouterr().err.split())


def test_a_method_is_written_with_its_parameters(capsys):
    spelt = inspected(capsys, "--method", "longheads:num_chunks=3,local_chunks=1,angles=yarn")
    apart = ["--method", "longheads", "--set", "num_chunks=3", "--set", "local_chunks=1", "--angles", "yarn"]
    assert spelt == inspected(capsys, *apart)
    assert spelt == inspected(capsys, "--method", "longheads:num_chunks=3,angles=yarn", "--set", "local-chunks=1")


@pytest.mark.parametrize("command", [["inspect", str(FOLDER)], ["generate", "--model", str(FOLDER), "--prompt", "hi"]])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--method", "longheads:num_chunks=3", "--set", "num_chunks=4"], "num_chunks is set twice"),
        (["--method", "dca:angles=yarn", "--angles", "pi"], "angles are set twice"),
        (["--method", "auto:num_chunks=3"], "auto takes no parameters"),
        (["--method", "longhead:num_chunks=3"], "did you mean 'longheads'"),
        (["--method", "dca:"], "name:key=value"),
    ],
)
def test_a_method_that_is_written_wrongly(capsys, command, given, says):
    assert says in refused(capsys, *command, *given)
