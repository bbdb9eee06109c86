"""The committed tables of the papers are what ``longspan reproduce`` makes, whole, of a model that can read."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest

from longspan.bundled import FOLDER, load_bundled
from longspan_eval.reproduce import PAPERS
from longspan_eval.reproduce.cells import INSIDE
from longspan_eval.reproduce.published import published
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.subject import Subject

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"
EVERY = pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()


@lru_cache(maxsize=len(PAPERS))
def results(paper):
    return json.loads((RESULTS / paper.name / "results.json").read_text(encoding="utf-8"))


def summary(paper):
    return (RESULTS / paper.name / "summary.md").read_text(encoding="utf-8")


def shares_in_the_window(table, window):
    """The shares that the stock model reaches on prompts of its window, by row."""
    rows = {}
    for cell in table["cells"]:
        stock = cell["row"] == INSIDE or (cell["row"] == "stock" and cell["column"] == f"1x ({window:,})")
        if stock and cell["reason"] is None and cell["unit"] == "share":
            rows.setdefault(cell["row"], []).append(cell["value"] or 0.0)  # None where nothing was measured
    return rows


def test_results_of_the_bundled_model_are_of_its_weights(bundled):
    """Or what stands on the pages was measured on another model: run the file's command again."""
    ours = Subject.of(*bundled).sha256
    read = {path: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.parent.rglob("*.json")}
    models = {path.relative_to(ROOT): one.get("model") for path, one in read.items() if isinstance(one, dict)}
    weights = {path: model["sha256"] for path, model in models.items() if isinstance(model, dict) and "sha256" in model}
    assert len(weights) >= len(PAPERS) and {path for path, sha256 in weights.items() if sha256 != ours} == set()


@EVERY
def test_every_table_is_there_in_order(paper):
    assert list(results(paper)["tables"]) == [table.name for table in paper.tables]


@EVERY
def test_only_figures_that_nobody_could_read_are_not_at_hand(paper):
    unread = [
        one for table in paper.tables for number in table.numbers for one in published(paper.name, number) if one.unread
    ]
    text = summary(paper)
    assert text.count("Not at hand") == len(unread)
    for one in unread:
        assert f"**Published, {one.number}**: {one.title}. Not at hand: {one.unread}." in text


@EVERY
def test_protocols_are_those_of_the_code(paper, bundled):
    """Where one differs, what stands below it was measured by other rules: run its table again."""
    model, tokenizer = bundled
    session = PaperSession(
        model,
        tokenizer,
        Subject.of(model, tokenizer),
        scale="quick",
        windows=paper.windows,
        calibration=FOLDER / "calibration.safetensors",
    )
    text = summary(paper)
    for table in paper.tables:
        protocol = table.protocol(session)
        assert results(paper)["tables"][table.name]["protocol"] == protocol and protocol in text, table.name


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="an sdist leaves the results' pictures out")
@EVERY
def test_pictures_are_those_of_the_tables_that_are_drawn(paper):
    drawn = {table.name for table in paper.tables if table.lines or table.depths}
    for table in paper.tables:
        drawn |= {number.lower().replace(" ", "-") for number in table.numbers if table.pictures is not None}
    assert {path.stem for path in (RESULTS / paper.name).glob("*.png")} == drawn


@EVERY
def test_the_stock_model_finds_something_in_its_window(paper):
    """A paper whose stock rows are at 0% in the window says nothing of any method."""
    window = results(paper)["model"]["window"]
    rows = [shares_in_the_window(table, window) for table in results(paper)["tables"].values()]
    assert max(max(values) for own in rows for values in own.values()) > 0
