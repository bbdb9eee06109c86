"""benchmarks/dense.py: its table is that of its results, of the model that ships, and says what the pages say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from longspan.bundled import load_bundled
from longspan_eval.subject import Subject

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import dense  # noqa: E402

RESULTS = json.loads(dense.RESULTS.read_text(encoding="utf-8"))


def answered(row):
    return sum(row[name] for name in dense.ASKED)


def pairs(windows):
    """The rows of a length: with ``"window"`` and with ``"kept"``."""
    rows = [row for row in RESULTS["rows"] if row["windows"] == windows]
    return list(zip(rows[::2], rows[1::2], strict=True))


def test_the_table_is_that_of_the_file():
    assert dense.filled(RESULTS) == dense.DOCUMENT.read_text(encoding="utf-8")


def test_results_are_of_the_model_that_ships():
    """`python benchmarks/dense.py` measures it again."""
    assert RESULTS["model"]["sha256"] == Subject.of(*load_bundled()).sha256


def test_every_method_is_there_at_every_length():
    for windows in dense.MULTIPLES:
        assert [row["method"] for row, _ in pairs(windows)] == list(dense.METHODS)
        for pair in pairs(windows):
            assert tuple(row["dense"] for row in pair) == dense.DENSE
            assert all(0 <= row[name] <= RESULTS["prompts"] == 25 for row in pair for name in dense.ASKED)


def test_the_default_is_what_was_measured_as_better():
    """In the window, as docs/methods says; where this fails, another default is due, or other words."""
    for window, kept in pairs(1):
        assert answered(kept) <= answered(window) and 0.8 < kept["seconds_over_window"] < 1.25
        if not kept["method"].startswith("esa"):
            assert answered(kept) < answered(window)
        if kept["method"] == "infllm":
            assert answered(kept) < answered(window) / 2 and kept["seconds_over_window"] > 1
        assert dense.spec(kept["method"], "window").method == dense.parse_spec(kept["method"]).method


def test_a_table_by_hand():
    row = {"method": "esa", "windows": 1, "passkey": 25.0, "passkey-prose": 24.0, "facts": 20.5, "perplexity": 30.04}
    kept = {**row, "passkey": 3.0, "perplexity": 31.06, "seconds_over_window": 1.234}
    assert dense.table([row, kept])[2:] == ["| ESA, 1x | 25, 3 | 24, 24 | 20.5, 20.5 | 30.0, 31.1 | 1.23 |"]


def test_a_prompt_that_fails_ends_the_run():
    session = dense.bundled()
    with pytest.raises(RuntimeError, match=r"esa:.*passkey, 20 tokens: .*too few"):
        dense.scores(session, dense.spec("esa", "kept"), 20)
