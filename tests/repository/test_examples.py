"""The scripts and the notebook of examples/: each runs as it is and shows what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.bundled import FOLDER

NOTEBOOK = "read_beyond_the_window.ipynb"
EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = json.loads((FOLDER / "config.json").read_text())
LAYERS, KEY_HEADS = MODEL["num_hidden_layers"], MODEL["num_key_value_heads"]


def run(name: str, tmp_path: Path) -> str:
    """What a script prints, run in a folder of its own."""
    threads = {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", str(EXAMPLES / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **threads},
    )
    assert ran.returncode == 0, ran.stderr
    assert list(tmp_path.iterdir()) == [], "it leaves something behind"
    return ran.stdout


def test_each_is_short_and_tested_here():
    own = Path(__file__).read_text()
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    for script in scripts:
        assert len(script.read_text().splitlines()) <= 60, script.name
        assert f'run("{script.name}"' in own, f"{script.name} has no test"


def test_scripts_pass_a_cache_by_the_name_that_no_transformers_warns_of():
    """kvpress's own hooks have the earlier one."""
    scripts = [*EXAMPLES.glob("*.py"), *(EXAMPLES.parent / "benchmarks").glob("*.py")]
    named = [path.name for path in scripts if "past_key_values" in path.read_text()]
    assert named == ["contestants.py"]


@pytest.mark.long
def test_extend_and_generate(tmp_path):
    said = run("extend_and_generate.py", tmp_path)
    assert int(re.search(r"^(\d+) tokens", said)[1]) > 4 * 512
    assert re.search(r"^dca: 71428", said, re.MULTILINE)
    stock, restored = (re.search(rf"^{word}: (.*)", said, re.MULTILINE)[1] for word in ("stock", "restored"))
    assert "71428" not in stock and restored == stock


@pytest.mark.long
def test_a_left_padded_batch(tmp_path):
    said = run("left_padded_batch.py", tmp_path)
    found = re.findall(r"^(\d+) tokens: (\d{5})", said, re.MULTILINE)
    assert [key for _, key in found] == ["43917", "80326", "15794"]
    assert int(found[-1][0]) > 8 * 512
    assert "the same one by one: True" in said


@pytest.mark.long
def test_what_the_heads_look_at(tmp_path):
    said = run("what_the_heads_look_at.py", tmp_path)
    answer = re.search(r"the answer is in chunk (\d+)", said)[1]
    lines = said.splitlines()
    shown = [n for n, line in enumerate(lines) if line.startswith("layer")]
    assert len(shown) == LAYERS * KEY_HEADS
    for n in shown:
        chunks = lines[n + 1].split()
        assert len(chunks) == 13 and ("answer chosen" in lines[n]) == (answer in chunks)
    assert any(f"best chunk {answer}" in lines[n] for n in shown), "no head's best chunk holds the answer"


@pytest.mark.long
def test_a_method_of_your_own(tmp_path):
    said = run("method_of_your_own.py", tmp_path)
    assert re.search(r"method +bounded-extend", said) and re.search(rf"attached +layers 0-{LAYERS - 1}\b", said)
    assert re.search(r"^inside: 71428", said, re.MULTILINE)
    assert re.search(r"^outside: (?!71428)", said, re.MULTILINE)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_text_larger_than_memory(tmp_path):
    said = run("larger_than_memory.py", tmp_path)
    assert "in memory: can't allocate memory" in said
    assert re.search(r"^in files: 71428", said, re.MULTILINE)
    size = 32_768 * LAYERS * KEY_HEADS * MODEL["head_dim"] * 2 * 4  # bytes: keys and values in fp32
    assert int(re.search(r"^(\d+) MiB of keys and values", said, re.MULTILINE)[1]) == size >> 20
    assert int(re.search(r"'disk': (\d+)", said)[1]) >= size


@pytest.mark.long
def test_ask_a_book(tmp_path):
    said = run("ask_a_book.py", tmp_path)
    assert re.search(r"^read ([\d,]+) tokens in", said, re.MULTILINE)
    answers = re.findall(r"^(?:asked|opened, asked again): (\d{5})", said, re.MULTILINE)
    assert answers == ["71428", "71428"]
    assert "The pass key is 71428." in said.partition("attended most to:")[2].splitlines()[1]
    assert re.search(r"^appended: 35190", said, re.MULTILINE)


def printed(notebook) -> str:
    """What its cells print, without warnings."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    return "".join(one.text for one in outputs if one.output_type == "stream" and one.name == "stdout")


@pytest.mark.long
def test_the_notebook_runs_and_shows_what_it_prints():
    import nbclient
    import nbformat

    shown = nbformat.read(EXAMPLES / NOTEBOOK, as_version=4)
    said = re.findall(r".*71428.*", printed(shown))
    ran = nbclient.execute(nbformat.from_dict(shown), timeout=600)
    assert re.findall(r".*71428.*", printed(ran)) == said
    assert {"dca", "esa", "longheads"} <= {line.split()[0] for line in said} and "streaming-llm" not in str(said)
