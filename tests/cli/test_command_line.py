"""Every command, as people use commands: -h, --json, --quiet, stdin, narrow terminals, misspelt names."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from longspan.bundled import heldout_text
from longspan.cli import main
from support.command_line import Ran

pytestmark = pytest.mark.hostile

# A run of each command that takes a second or two; OUT is a folder of the test's own, BOOK a text.
RUNS = {
    "methods": ["methods"],
    "methods --window": ["methods", "--window", "512"],
    "inspect": ["inspect", "bundled", "--method", "esa"],
    "doctor": ["doctor"],
    "generate": ["generate", "--model", "bundled", "--prompt", "Once upon a time", "--max-new-tokens", "4"],
    "read": ["read", "BOOK", "--model", "bundled", "--out", "OUT/book.longspan"],
    "calibrate": ["calibrate", "bundled", "--text", "BOOK", "--tokens", "600", "--report", "--report-tokens", "1100",
                  "--report-top", "16", "--out", "OUT/c.safetensors"],
    "analyze": ["analyze", "--model", "bundled", "--method", "longheads:score=bounds", "--task", "passkey",
                "--lengths", "600", "--samples", "1", "--out", "OUT/look"],
    "analyze dca": ["analyze", "--method", "dca:chunk_size=6,local_window=4", "--window", "10", "--out", "OUT/look"],
    "eval": ["eval", "passkey", "--model", "bundled", "--methods", "longheads:score=bounds", "--lengths", "1x",
             "--samples", "1", "--out", "OUT/eval"],
    "eval --dry-run": ["eval", "passkey", "--model", "bundled", "--lengths", "1x,700", "--samples", "3", "--dry-run",
                       "--out", "OUT/eval"],
    "eval --list": ["eval", "--list"],
    "reproduce": ["reproduce", "esa", "--model", "bundled", "--tables", "eq-9", "--max-length", "1",
                  "--out", "OUT/esa"],
    "reproduce --list": ["reproduce", "--list"],
    "demo": ["demo", "--methods", "stock,longheads:score=bounds", "--lengths", "1x", "--prompts", "1",
             "--out", "OUT/demo"],
}  # fmt: skip
COMMANDS = ["demo", "generate", "methods", "inspect", "doctor", "calibrate", "analyze", "eval", "reproduce"]
COMMANDS += ["read", "ask", "chat", "documents", "verify", "serve"]


def some_long(names):
    """The names, with those marked that compute for seconds."""
    slow = ("calibrate", "demo", "eval", "analyze")
    return [pytest.param(name, marks=pytest.mark.long) if name in slow else name for name in names]


@pytest.fixture
def run(capsys, tmp_path):
    (tmp_path / "book.txt").write_text(heldout_text()[:12_000], encoding="utf-8")

    def call(*args: str) -> Ran:
        given = [arg.replace("OUT", str(tmp_path)).replace("BOOK", str(tmp_path / "book.txt")) for arg in args]
        with pytest.raises(SystemExit) as stopped:
            main(given)
        return Ran(int(stopped.value.code or 0), *capsys.readouterr())

    return call


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_is_asked_for_in_two_ways(run, command):
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.code == 0 and short == long and "Usage: longspan" in short.out
    wanted = ["--json", "--quiet", "-q"] if command != ["serve"] else ["--host"]  # a server prints no result
    assert all(option in short.out for option in (wanted if command else COMMANDS))


@pytest.mark.parametrize("name", some_long(RUNS))
def test_json_is_one_document_on_stdout(run, name):
    ran = run(*RUNS[name], "--json")
    assert ran.code == 0, ran.err
    body = json.loads(ran.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert isinstance(body, (dict, list)) and body


@pytest.mark.parametrize("name", some_long(RUNS))
def test_quiet_prints_the_result_alone(run, name):
    ran = run(*RUNS[name], "--quiet")
    assert ran.code == 0 and ran.err == ""
    assert ran.out.strip() or name == "analyze dca"
    again = run(*RUNS[name], "--quiet", "--json")
    assert again.code == 0 and again.err == "" and json.loads(again.out)


def words(text: str) -> set[str]:
    """What is read as one thing, without what frames it. Times differ from run to run."""
    found = set(re.sub(r"[─━│╭╮╰╯█░]", " ", text).split())
    return {word for word in found if len(word) <= 36 and not re.fullmatch(r"[\d.]+(s|%)?", word)}


NARROW = ["methods", "methods --window", "inspect", "doctor", "calibrate", "analyze"]
NARROW += ["eval --list", "reproduce --list", "demo"]


@pytest.mark.parametrize("name", some_long(NARROW))
def test_forty_columns_break_and_cut_nothing(run, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    wide = run(*RUNS[name], "--quiet")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run(*RUNS[name], "--quiet")
    assert wide.code == narrow.code == 0
    assert max(map(len, narrow.out.splitlines())) <= 40
    assert narrow.out.count("…") == wide.out.count("…")
    assert words(wide.out) - words(narrow.out) <= {"method", "table", "task"}, "what names a block has no heading"


def test_a_dry_run_at_forty_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    ran = run(*RUNS["eval --dry-run"], "--quiet")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 40
    assert {"cells", "prompts", "tokens", "stock", "dca", "all"} <= words(ran.out)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["inspect", "bundled", "--method", "longhead"], "longheads"),
        (["inspect", "bundled", "--method", "self_extend"], "self-extend"),
        (["inspect", "bundled", "--method", "DCA"], "dca"),
        (["inspect", "bundled", "--method", "dca", "--set", "chunk_sise=4"], "chunk_size"),
        (["inspect", "bundled", "--method", "pi", "--set", "scael=4"], "scale"),
        (["inspect", "bundled", "--method", "dca", "--angles", "yarm"], "yarn"),
        (["inspect", "bundled", "--method", "longheads", "--set", "score=bound"], "bounds"),
        (["generate", "--model", "bundled", "--prompt", "x", "--method", "ESAs"], "esa"),
        (["generate", "--model", "bundled", "--prompt", "x", "--dtype", "bfloat"], "bfloat16"),
        (["analyze", "--method", "infllmm", "--out", "OUT/o"], "infllm"),
        (["analyze", "--method", "esa", "--model", "bundled", "--task", "passky", "--out", "OUT/o"], "passkey"),
        (["calibrate", "bundled", "--text", "BOOK", "--out", "OUT/c.st", "--solver", "closed-from"], "closed_form"),
        (["demo", "--methods", "stok,dca"], "stock"),
        (["eval", "pass-key", "--model", "bundled"], "passkey"),
        (["eval", "perplexiti", "--model", "bundled"], "perplexity"),
        (["eval", "passkey", "--model", "bundled", "--methods", "dca:local_windw=3"], "local_window"),
        (["reproduce", "longhead", "--model", "bundled"], "longheads"),
        (["reproduce", "esa", "--model", "bundled", "--tables", "eq9"], "eq-9"),
        (["reproduce", "esa", "--model", "bundled", "--scale", "quik"], "quick"),
    ],
)
def test_did_you_mean(run, args, meant):
    ran = run(*args)
    assert ran.code != 0 and ran.out == "" and ran.err.count("\n") == 1
    assert f"did you mean {meant!r}?" in ran.err


def test_what_is_like_nothing_gets_no_guess(run):
    assert "did you mean" not in run("inspect", "bundled", "--method", "xyzzy").err


def stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize(
    ("args", "dash"),
    [
        (["generate", "--model", "bundled", "--prompt", "And then", "--max-new-tokens", "4", "--file"], None),
        (["analyze", "--model", "bundled", "--method", "esa", "--lengths", "600", "--out", "OUT/o", "--file"], None),
        (["calibrate", "bundled", "--tokens", "600", "--out", "OUT/c.safetensors", "--text"], None),
        pytest.param(["eval", "perplexity", "--model", "bundled", "--lengths", "1x", "--samples", "1", "--out", "OUT/o",
                      "--text"], "stdin-*.txt", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_text_comes_in_on_stdin(run, monkeypatch, tmp_path, args, dash):
    text = heldout_text()[:12_000].encode()
    stdin(monkeypatch, text)
    piped = run(*args, "-", "--json")
    assert piped.code == 0, piped.err
    read = json.loads(piped.out)
    named = run(*args, "BOOK", "--json")
    assert named.code == 0, named.err
    same = json.loads(named.out)
    for key in ("answer", "lengths", "tokens", "weights_sha256"):
        assert read.get(key) == same.get(key)
    if dash is not None:
        assert [path.read_bytes() for path in (tmp_path / "o").glob(dash)] == [text]
        assert [cell["score"] for cell in read["cells"]] == [cell["score"] for cell in same["cells"]]


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "stdin: the file is empty"), (b" \n", "stdin: the file is empty"), (b"ab\xff", "byte 2")],
)
def test_stdin_without_a_text_is_one_line(run, monkeypatch, data, said):
    stdin(monkeypatch, data)
    ran = run("generate", "--model", "bundled", "--prompt", "x", "--file", "-")
    assert ran.code == 1 and ran.out == "" and ran.err.count("\n") == 1 and said in ran.err


def test_stdin_is_read_once(run, monkeypatch):
    stdin(monkeypatch, b"some words")
    for args in (
        ["calibrate", "bundled", "--text", "-", "--text", "-", "--out", "OUT/c.safetensors"],
        ["eval", "perplexity", "--model", "bundled", "--text", "-", "--text", "-", "--out", "OUT/o"],
    ):
        ran = run(*args)
        assert ran.code == 1 and "stdin (-) can be read only once" in ran.err


def alone(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from longspan.cli import main; main({list(args)!r})"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def with_closed(streams: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A run that a shell starts without some of the standard streams."""
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "longspan", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


ASK = ("generate", "--model", "bundled", "--prompt", "x", "--max-new-tokens", "2", "--device", "cpu")


def test_a_closed_stdin_is_an_empty_one():
    ran = with_closed("<&-", *ASK, "--file", "-")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "longspan: error: stdin: the file is empty\n")


@pytest.mark.parametrize(
    ("streams", "args"),
    [(">&-", ["methods"]), ("<&- >&- 2>&-", ["methods"]), pytest.param(">&-", ASK, marks=pytest.mark.long)],
)
def test_closed_streams_take_what_is_written(streams, args):
    ran = with_closed(streams, *args)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr


def test_the_version():
    from importlib.metadata import PackageNotFoundError, version

    import longspan

    ran = alone("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"longspan {longspan.__version__}\n", "")
    with suppress(PackageNotFoundError):  # a checkout is not installed
        assert version("longspan") == longspan.__version__


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("longspan ", {"demo", "eval", "reproduce"}),
        ("longspan ev", {"eval"}),
        ("longspan eval --dry", {"--dry-run"}),
        ("longspan generate --js", {"--json"}),
    ],
)
def test_completion(typed, offered):
    ran = alone(
        _LONGSPAN_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(typed.split(" ")) - 1),
        _TYPER_COMPLETE_ARGS=typed,
    )  # fmt: skip
    assert ran.returncode == 0 and offered <= set(ran.stdout.split()), ran


def test_completion_can_be_installed(run):
    assert "--install-completion" in run("--help").out and "--show-completion" in run("--help").out
