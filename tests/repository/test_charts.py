"""The documentation's charts show the committed results; its moving picture shows what a command wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "docs" / "gen")]

import cast  # noqa: E402
import charts  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return ["".join(text.itertext()).strip() for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", charts.CHARTS)
def test_a_chart_is_small_and_takes_the_colour_of_the_page(name):
    svg = charts.draw(name)
    assert len(svg) < 100_000 and ElementTree.fromstring(svg).get("aria-label")
    assert charts.INK not in svg and "currentColor" in svg and "<style" not in svg
    names = re.findall(r'\bid="([^"]*)"', svg)
    assert len(set(names)) == len(names) and words(svg)


def test_bars_are_the_medians_of_the_results():
    shown = words(charts.draw("peers"))
    found = json.loads((ROOT / "benchmarks" / "results" / "beside.json").read_text(encoding="utf-8"))
    for length in ("4096", "16384"):
        reads = [one["read"] for key, one in found.items() if key.split("|")[1:4] == ["1", length, "llama.cpp"]]
        assert f"{median(reads):.3g}" in shown and f"{int(length):,} tokens" in shown


def test_rows_are_those_of_the_readme():
    shown = " ".join(words(charts.draw("facts")))
    readme = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- real -->")[2].partition("<!-- /real -->")[0]
    )
    rows = re.findall(r"^\| (\w[^|]*) \|", readme, re.MULTILINE)
    assert len(rows) == 8 and all(row.replace("`", "").split()[0] in shown for row in rows)


def test_a_chart_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no chart 'none'; there are facts, "):
        charts.draw("none")


def test_a_picture_of_a_run_has_its_words_and_shortens_its_waits():
    long = "one " * 40
    lines, seconds = cast.lines_of({"echo hi": [(0.5, "The king"), (20.5, f" is\n<b>{long}\n"), (20.6, "\n")]})
    assert seconds < cast.REST * 2 + cast.LONGEST + 2
    svg = cast.draw(lines)
    assert words(svg)[1:3] == ["$ echo hi", "The king is"] and " ".join(words(svg)[3:]) == f"<b>{long}".strip()
    assert all(len(row) <= cast.COLUMNS for row in words(svg)[1:])


def test_the_committed_picture_is_one_of_these():
    svg = (ROOT / "docs" / "assets" / "ask.svg").read_text(encoding="utf-8")
    assert len(svg) < 50_000
    assert [line.removeprefix("$ ") for line in words(svg) if line.startswith("$ ")] == list(cast.COMMANDS)
