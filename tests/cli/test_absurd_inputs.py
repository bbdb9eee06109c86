"""Absurd values for every option of every command: a non-zero exit code, one line on stderr, no traceback.

Some 600 inputs. A value that a command can make sense of may succeed; what it may not do is fail in any other way.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from longspan.bundled import FOLDER
from longspan.cli import main
from support.command_line import no_hub  # noqa: F401  a fixture

pytestmark = pytest.mark.hostile

LONG_NUMBER = "9" * 23
NUMBERS = ["0", "-1", "1e400", "nan", "inf", LONG_NUMBER, str(2**63), f"-{LONG_NUMBER}", "", "x", "1.5", "True", "\0"]
TEXTS = ["", " ", "\udcff", "\0", "x" * 5000, "{}", "../..", "/dev/null", "/dev/full", "folder", "text", "empty"]
PATHS = ["", "\udcff", "\0", "x" * 5000, "/dev/null", "/dev/full", "folder", "bytes", "empty", "text/x", "denied"]
PATHS += ["/proc/self/mem", "nowhere/nothing"]
PLACES = ["text", "/dev/null", "\0", "x" * 5000, "text/x"]  # where a folder is to be made
COUNTS = ["0", "-1", "nan", "x", "1.5", "", LONG_NUMBER + "x"]
SETTINGS = [f"{key}={value}" for key in ("chunk_size", "colour", "length_scale", "") for value in NUMBERS]
DEVICES = ["meta", "cuda:99", "cuda:-1", "mps", "xla", "vulkan", "hpu", "cpu:x", ":", "moon"]
NAMES = ["nobody/nothing", "a/b/c", "~/x", "./x", "owner/", "/", "two words", "-"]
YARN = [f"{key}={value}" for key in ("factor", "target_length", "beta_fast", "attention_factor") for value in NUMBERS]

GENERATE = ["generate", "--model", "MODEL", "--prompt", "hi", "--max-new-tokens", "1"]
CALIBRATE = ["calibrate", "MODEL", "--text", "text", "--out", "c.safetensors", "--tokens", "300"]
ANALYZE = ["analyze", "--model", "MODEL", "--method", "esa", "--task", "passkey", "--samples", "1", "--out", "out"]
EVAL = ["eval", "passkey", "--model", "MODEL", "--lengths", "2x", "--samples", "1", "--out", "out", "--dry-run"]
PERPLEXITY = ["eval", "perplexity", *EVAL[2:], "--text", "text"]
REPRODUCE = ["reproduce", "dca", "--model", "MODEL", "--out", "out", "--tables", "nothing"]

# What fails before anything is computed: an option, and the values that it is given in place of its own.
QUICK = {
    "methods": (["methods"], {"--window": NUMBERS}),
    "positions": (["analyze", "--method", "dca", "--window", "64", "--out", "out"], {"--window": NUMBERS[:-2]}),
    "inspect": (["inspect", "MODEL"], {"--window": NUMBERS, "--length": NUMBERS, "--method": TEXTS}),
    "generate": (GENERATE, {"--window": NUMBERS, "--prompt": ["", "\udcff", " ", "\0"], "--device": DEVICES,
                            "--model": NAMES, "--max-new-tokens": NUMBERS[:5]}),
    "demo": (["demo"], {"--prompts": COUNTS, "--methods": TEXTS, "--seed": ["x", "nan", "1.5", ""], "--out": PLACES,
                        "--lengths": ["", "x", "0x", "nanx", "infx", "1e400x", ",", "1x,1x", "99999x"]}),
    "reproduce": (REPRODUCE, {"--scale": TEXTS, "--samples": COUNTS, "--max-minutes": ["0", "nan", "-1", "x"],
                              "--max-full-seconds": ["0", "nan", "x"], "--max-length": COUNTS, "--window": NUMBERS}),
}  # fmt: skip
LONG = {
    "inspect": (["inspect", "MODEL"], {"--set": SETTINGS}),
    "angles": (["inspect", "MODEL", "--method", "yarn"], {"--set": YARN}),
    "generate": (GENERATE, {"--file": PATHS, "--calibration": PATHS, "--kv-dir": PATHS, "--kv-tier": TEXTS,
                            "--dtype": TEXTS, "--method": TEXTS, "--angles": TEXTS, "--set": TEXTS}),
    "calibrate": (CALIBRATE, {"--text": PATHS, "--out": [*PATHS, "x.png"], "--tokens": NUMBERS, "--reduced": NUMBERS,
                              "--reduced-per-head": NUMBERS, "--solver": TEXTS, "--window": NUMBERS,
                              "--report-text": PATHS, "--report-top": NUMBERS}),
    "analyze": (ANALYZE, {"--lengths": [*NUMBERS, "1e30x", "-1x", "xx", "k", ",", "4k,,"], "--samples": COUNTS,
                          "--chunk": NUMBERS, "--seed": NUMBERS, "--window": NUMBERS, "--out": PLACES, "--task": TEXTS,
                          "--method": TEXTS, "--calibration": PATHS}),
    "eval": (EVAL, {"--lengths": NUMBERS, "--samples": COUNTS, "--depths": COUNTS, "--data-dir": PATHS, "--text": PATHS,
                    "--max-full-seconds": COUNTS[:4], "--workers": COUNTS, "--threads": COUNTS, "--methods": TEXTS,
                    "--window": NUMBERS, "--ray": ["x:1", "localhost:99999999", ":"], "--mode": TEXTS}),
    "perplexity": (PERPLEXITY, {"--text": PATHS, "--stride": NUMBERS, "--mode": TEXTS}),
    "reproduce": (REPRODUCE, {"--tables": TEXTS, "--data-dir": PATHS, "--calibration": PATHS, "--out": PLACES}),
}  # fmt: skip


def cases(table):
    return [(command, option) for command, (_, options) in table.items() for option in options]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the values name."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("some words here. " * 300)
    Path("empty").touch()
    Path("bytes").write_bytes(b"\xff\xfe\x00" * 50)
    Path("folder").mkdir()
    Path("denied").write_text("words")
    Path("denied").chmod(0)
    return tmp_path


def tried(table, command, option, model, capsys):
    """Run every value of an option, and say what is wrong with how it ended."""
    base, options = table[command]
    wrong = []
    for value in options[option]:
        args = [model if arg == "MODEL" else arg for arg in base]
        if option in args:
            args[args.index(option) + 1] = value
        else:
            args += [option, value]
        with pytest.raises(SystemExit) as ended:
            main(args)
        said = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        code = ended.value.code or 0
        if "Traceback" in "".join(said) or (code != 0 and (len(said) != 1 or "longspan: error: " not in said[0])):
            wrong.append((value[:60], code, said[:5]))
    return wrong


@pytest.mark.parametrize(("command", "option"), cases(QUICK))
def test_one_line(place, model_folder, capsys, command, option):
    assert not tried(QUICK, command, option, model_folder, capsys)


@pytest.mark.long
@pytest.mark.parametrize(("command", "option"), cases(LONG))
def test_one_line_of_what_loads_a_model(place, model_folder, capsys, command, option):
    assert not tried(LONG, command, option, model_folder, capsys)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["methods", "--window", LONG_NUMBER], ["--window", LONG_NUMBER]),
        (["inspect", "MODEL", "--window", LONG_NUMBER], ["--window", LONG_NUMBER]),
        (["generate", "--model", "MODEL", "--prompt", "x", "--device", "meta"], ["meta", "stores no data"]),
        (["generate", "--model", "MODEL", "--prompt", "a\udcff"], ["--prompt", "UTF-8", "character 2"]),
        (["generate", "--model", "MODEL", "--prompt", "x", "--file", "/dev/zero"], ["/dev/zero", "a device"]),
        (["inspect", "no/such/folder"], ["no/such/folder", "model folder does not exist"]),
        (["inspect", "nothing/"], ["model folder does not exist"]),
    ],
)
def test_the_line_says_what_is_wrong(place, model_folder, capsys, args, words):
    with pytest.raises(SystemExit) as ended:
        main([model_folder if arg == "MODEL" else arg for arg in args])
    said = capsys.readouterr().err
    assert ended.value.code and all(word in said for word in words), said


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """The bundled model under a path of its own."""
    path = tmp_path_factory.mktemp("model")
    for file in FOLDER.iterdir():
        if file.suffix in (".json", ".safetensors"):
            shutil.copy(file, path)
    return str(path)
