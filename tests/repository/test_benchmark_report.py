"""The benchmarks' exponents and report."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.benchmarks import row

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import common  # noqa: E402
import report  # noqa: E402
import suite  # noqa: E402

# Exponents


@given(b=st.floats(0.0, 2.5), a=st.floats(1e-6, 1e3), lengths=st.sets(st.integers(1, 1 << 20), min_size=2, max_size=6))
def test_the_exponent_of_a_power_is_found(a, b, lengths):
    lengths = sorted(lengths)
    assert report.fit_exponent(lengths, [a * n**b for n in lengths]) == pytest.approx(b, abs=1e-5)


def test_the_exponent_is_the_one_of_the_least_squares():
    # log2: points (0, 0), (1, 3), (2, 2); the line through their middle has slope (2 - 0) / 2.
    assert report.fit_exponent([1, 2, 4], [1, 8, 4]) == pytest.approx(1.0)


def test_growth_is_of_one_method_in_one_shape():
    rows = [row(length=n, seconds=str(n**1.5)) for n in (4, 16)]
    rows += [row(length=8, heads=8, seconds="9"), row(method="dca", length=4), row(method="dca", length=64, seconds="")]
    assert [(r["method"], r["exponent"], r["lengths"]) for r in report.growth(rows)] == [("esa", "1.50", "4 16")]


# The report


def test_the_report_is_made_of_the_files(tmp_path):
    rows = [row(length=n, seconds=str(n / 1e5), method=m) for m in ("full", "esa") for n in (4096, 65536)]
    rows += [row(phase="prefill", dtype="fp32", heads=8, length=4096, method="flash", over_stock="0.9")]
    rows += [row(phase="decode", heads=8, length=4096, method="full", seconds="7")]  # another shape, with fewer lengths
    suite.write(tmp_path, rows, 2)
    assert report.main(["--folder", str(tmp_path)]) == 0
    text = (tmp_path / "speed.md").read_text()
    assert text.count("\n| decode | bf16 |") == 5 + 2 and "| prefill | fp32 | 8 |" in text
    assert version("torch") in text
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in ("prefill", "decode"))
    found = report.points(common.load(tmp_path / "cases.csv"), "decode", "bf16")
    assert found["full"] == {4096: 0.04096, 65536: 0.65536} and list(found) == ["full", "esa"]


def test_a_report_of_nothing_says_what_to_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        report.main(["--folder", str(tmp_path)])
    assert "has no cases.csv; run benchmarks/suite.py first" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no row of a prefill in bf16"):
        report.points([row()], "prefill", "bf16")


def test_the_page_has_every_ratio_that_it_shows():
    cases = common.load(report.FOLDER / "cases.csv")
    assert len({(row["what"], row["over"]) for row in report.ratios(cases)}) == len(report.SHOWN)
