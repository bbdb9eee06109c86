"""What is committed of documents' bars."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def documents():
    """The script; another module of the tests has its name."""
    spec = importlib.util.spec_from_file_location("benchmark_of_documents", ROOT / "benchmarks" / "documents.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_part_has_its_bars_and_what_it_was_measured_with(documents):
    held = json.loads(documents.RESULTS.read_text())
    for part in documents.PARTS:
        assert documents.bars(part, held[part]), part
        assert {"device", "cpu", "threads", "torch", "transformers"} <= held[part].keys(), part


@pytest.mark.parametrize(
    ("part", "change", "missed"),
    [
        ("open", lambda x: x["sooner"].update(cold=49.0), "open and first token, cold"),
        ("open", lambda x: x["grows"].update(warm=1.51), "opening as the text grows, warm"),
        ("limit", lambda x: x["under"].update(tokens=[1]), "tokens under the limit"),
        ("limit", lambda x: x["read"].update(bytes=2.9e9), "keys and values"),
        ("limit", lambda x: x["under"].update(copied=True), "a copy of them in memory"),
        ("processes", lambda x: x.update(pss=2 * x["mapped"]), "copies in the page cache, 8 processes"),
        ("processes", lambda x: x.update(private=x["read"]["bytes"]), "private memory of a process"),
        ("spoiled", lambda x: x.update(refused=199), "spoiled documents refused"),
        ("spoiled", lambda x: x.update(long=["3: a file cut short"]), "spoiled documents with other than one line"),
    ],
)
def test_a_bar_that_is_missed_is_named(documents, part, change, missed):
    found = json.loads(documents.RESULTS.read_text())[part]
    if part == "open":
        found.update(sooner={"cold": 60.0, "warm": 60.0}, grows={"cold": 1.0, "warm": 1.0})
    assert all(bar.met for bar in documents.bars(part, found))
    change(found)
    assert [bar.what for bar in documents.bars(part, found) if not bar.met] == [missed]
    assert any(str(bar).startswith(f"MISSED: {missed}: ") for bar in documents.bars(part, found))
