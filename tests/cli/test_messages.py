"""Messages name the thing, the reason and the way out; output goes wherever it is sent."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.metadata import version

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import longspan
from longspan.bundled import FOLDER
from longspan.calibration import Calibration
from longspan.cli import main
from longspan.errors import AttachError, CalibrationError, LongspanError
from longspan.loading import hub
from longspan.methods import METHODS
from support.hf_models import make

pytestmark = pytest.mark.hostile

NO_COUNTS = [64.5, 64.0, "64", True, float("nan"), 0, -1, 10**23, [64]]


@pytest.fixture
def folder(tmp_path):
    for file in FOLDER.iterdir():
        if file.suffix in (".json", ".safetensors"):
            shutil.copy(file, tmp_path)
    (tmp_path / "calibration.safetensors").unlink()
    return tmp_path


def refused(args, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    told = capsys.readouterr()
    assert ended.value.code == 1 and told.out == "" and told.err.count("\n") == 1, told.err
    return told.err


# --- models and their files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("model.safetensors", "x", "model.safetensors: not a complete safetensors file (Error while deserializing"),
        ("config.json", "null", "its config.json is not a JSON object"),
        ("config.json", "[" * 100_000, "its config.json has too many nested levels"),
        ("generation_config.json", "null", "its generation_config.json is not a JSON object"),
        ("tokenizer.json", "null", "its tokenizer.json is not a JSON object"),
        ("tokenizer.json", "{", "its tokenizer.json is not valid JSON"),
        ("tokenizer.json", "{}", "the tokenizer of"),
    ],
)
def test_a_damaged_model_names_the_file(folder, capsys, file, content, says):
    (folder / file).write_text(content)
    said = refused(["generate", "--model", folder, "--prompt", "x"], capsys)
    assert says in said and str(folder) in said
    assert "'NoneType'" not in said


def test_a_tokenizer_without_a_part_names_it_and_the_kind_of_error(folder, capsys):
    held = json.loads((folder / "tokenizer.json").read_text())
    del held["added_tokens"]
    (folder / "tokenizer.json").write_text(json.dumps(held))
    said = refused(["generate", "--model", folder, "--prompt", "x"], capsys)
    assert said.endswith(f"the tokenizer of {folder}: one of its files has no 'added_tokens'\n")


def test_weights_that_are_no_numbers_are_called_so():
    model = make("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight[0, 0] = float("nan")
    with pytest.raises(AttachError, match="NaN or infinite.*weights.*damaged"):
        longspan.extend(model)


@pytest.mark.parametrize("head", ["null", "[]", "3", "{}", "[" * 100_000, '{"version": 1}'])
def test_a_calibration_with_a_wrong_header(tmp_path, head):
    path = tmp_path / "c.safetensors"
    with safe_open(FOLDER / "calibration.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"longspan_calibration": head})
    with pytest.raises(CalibrationError) as told:
        Calibration.load(path)
    assert str(told.value).startswith(f"{path}: ") and "NoneType" not in str(told.value) and len(str(told.value)) < 400


def test_angles_of_another_kind():
    with pytest.raises(ValueError, match=r"pi is full attention with PI angles: angles must be PI\(...\), not YaRN"):
        METHODS["pi"](angles=longspan.YaRN(factor=4))


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NO_COUNTS, ids=str)
@pytest.mark.parametrize("name", ["window", "length"])
def test_lengths_are_whole_numbers(name, value):
    model = make("llama")
    for call in (longspan.extend, longspan.inspect):
        with pytest.raises(LongspanError, match=f"^{name} must be an? (integer )?number of tokens"):
            call(model, "dca", **{name: value})
    with pytest.raises(ValueError, match="DCA|window"):
        longspan.DCA(chunk_size=value).resolve(64)
    if name == "window":
        for method in METHODS.values():
            with pytest.raises(LongspanError, match="^window must be an?"):
                method().resolve(value)


@pytest.mark.parametrize("value", NO_COUNTS, ids=str)
@pytest.mark.parametrize("name", ["window", "tokens", "reduced", "reduced_per_head", "seed"])
def test_sizes_of_a_calibration_are_whole_numbers(name, value):
    if name == "seed" and value == 0:
        pytest.skip("a seed may be 0")
    with pytest.raises(LongspanError, match=f"^{name} must be an?"):
        longspan.calibrate(make("llama"), [torch.arange(200) % 90], progress=False, **{"tokens": 200, name: value})


@pytest.mark.parametrize("value", [True, "4", float("nan"), [4]], ids=str)
@pytest.mark.parametrize(
    ("angles", "name"),
    [(longspan.PI, "scale"), (longspan.NTK, "scale"), (longspan.YaRN, "factor"), (longspan.DynamicNTK, "factor"),
     (longspan.YaRN, "beta_fast"), (longspan.YaRN, "attention_factor"), (longspan.PI, "target_length")],
)  # fmt: skip
def test_parameters_of_angles_are_numbers(angles, name, value):
    with pytest.raises(LongspanError, match=f"^{angles.__name__}: {name} must be a"):
        angles(**{name: value})


def test_methods_at_a_window_that_some_cannot_have(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["methods", "--window", "1", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert ended.value.code in (0, None) and rows.keys() == METHODS.keys()
    assert "error" not in rows["full"] and rows["esa"]["error"].startswith("not available for a window of 1: ESA: ")
    with pytest.raises(SystemExit):
        main(["methods", "--window", "1"])
    assert "not available for a window of 1" in " ".join(capsys.readouterr().out.split())


# --- the hub ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def nobody_there(monkeypatch):
    """An address where nothing listens, and proxies that the environment does not have."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False), monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    return port


def test_without_a_way_to_the_hub_a_name_fails_before_it_is_asked_for(nobody_there, monkeypatch, capsys):
    from huggingface_hub import constants

    asked = []
    client = "httpx" if version("huggingface_hub").startswith("1.") else "httpx2"
    monkeypatch.setattr(f"{client}.Client.send", lambda *args, **given: asked.append(args), raising=False)
    said = refused(["inspect", "nobody/nothing"], capsys)
    assert "no folder has this name; 127.0.0.1 cannot be reached: Connection refused" in said
    assert not asked and constants.HF_HUB_OFFLINE is False


def test_who_answers_is_within_reach(nobody_there, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hub.unreachable_reason(f"http://127.0.0.1:{server.getsockname()[1]}") is None
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub.unreachable_reason("http://unheard-of.invalid") is None  # the proxy leads there
    assert "cannot be reached" in hub.unreachable_reason("http://unheard-of.invalid")


def test_silence_is_no_answer(monkeypatch):
    monkeypatch.setattr(hub.socket, "create_connection", lambda *args, **given: time.sleep(1) or socket.socket())
    reason = hub.unreachable_reason("https://slow.invalid", timeout=0.1)
    assert reason == "slow.invalid cannot be reached: no answer in 0.1 s"


def test_a_local_path_does_not_go_to_the_hub(nobody_there, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(hub, "unreachable_reason", None)
    monkeypatch.chdir(tmp_path)
    for name in ("./here", "/no/such", "a/b/c", "here/", "two words", "~/x", ".."):
        said = refused(["inspect", name], capsys)
        assert "model folder does not exist" in said or "no config.json" in said


# --- where output goes -----------------------------------------------------------------------------------------------


def run(args, *, encoding=None, stdout=subprocess.PIPE, cwd=None):
    environment = {**os.environ, **({"PYTHONIOENCODING": encoding} if encoding else {})}
    code = [sys.executable, "-c", "from longspan.cli import main; main()", *args]
    return subprocess.run(code, stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=300, cwd=cwd)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_that_spells_little(encoding):
    done = run(["methods"], encoding=encoding)
    assert done.returncode == 0 and b"dca" in done.stdout and done.stderr.count(b"\n") <= 1


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_the_demonstration_on_a_terminal_that_spells_little(encoding, tmp_path):
    args = ["demo", "--prompts", "1", "--lengths", "1x,2x", "--methods", "stock,dca", "--out", str(tmp_path)]
    done = run(args, encoding=encoding, cwd=tmp_path)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert b"\\u25" not in done.stdout and b"\\u28" not in done.stdout  # bars and spinners have plain stand-ins


def test_a_full_disk_behind_stdout():
    with open("/dev/full", "wb") as full:
        done = run(["methods", "--json"], stdout=full)
    assert done.returncode == 1 and done.stderr == b"longspan: error: [Errno 28] No space left on device\n"


def test_a_reader_that_has_enough():
    read, write = os.pipe()
    os.close(read)
    done = run(["methods", "--json"], stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
