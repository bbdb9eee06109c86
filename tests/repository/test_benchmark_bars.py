"""The benchmarks' exponents, bars and report."""

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
import gpu  # noqa: E402
import report  # noqa: E402
import suite  # noqa: E402
import verdicts  # noqa: E402

# Exponents and bars


@given(b=st.floats(0.0, 2.5), a=st.floats(1e-6, 1e3), lengths=st.sets(st.integers(1, 1 << 20), min_size=2, max_size=6))
def test_the_exponent_of_a_power_is_found(a, b, lengths):
    lengths = sorted(lengths)
    assert verdicts.fit_exponent(lengths, [a * n**b for n in lengths]) == pytest.approx(b, abs=1e-5)


def test_the_exponent_is_the_one_of_the_least_squares():
    # log2: points (0, 0), (1, 3), (2, 2); the line through their middle has slope (2 - 0) / 2.
    assert verdicts.fit_exponent([1, 2, 4], [1, 8, 4]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("lengths", "seconds", "says"),
    [([4, 4], [1, 2], "two different lengths"), ([1, 2], [1, 0], "positive"), ([1, 2], [1], "2 lengths and 1 times")],
)
def test_what_no_exponent_fits_is_refused(lengths, seconds, says):
    with pytest.raises(ValueError, match=says):
        verdicts.fit_exponent(lengths, seconds)


def test_growth_is_of_one_method_in_one_shape():
    rows = [row(length=n, seconds=str(n**1.5)) for n in (4, 16)]
    rows += [row(length=8, heads=8, seconds="9"), row(method="dca", length=4), row(method="dca", length=64, seconds="")]
    assert [(r["method"], r["exponent"], r["lengths"]) for r in verdicts.growth(rows)] == [("esa", "1.50", "4 16")]


@pytest.mark.parametrize(
    ("value", "verdict"), [("0.0499", "met"), ("0.0500", "met"), ("0.0501", "missed"), ("nan", "missed")]
)
def test_a_bar_is_met_up_to_its_limit(value, verdict):
    bar = verdicts.Bar("decode", "esa", 65536, "over_stock", 0.05)
    others = [row(over_stock=value, length=4096), row(over_stock=value, width=64), row(method="dca")]
    (found,) = verdicts.judge([bar], [row(over_stock=value), *others])
    assert found["verdict"] == verdict and found["dtype"] == "bf16"


def test_a_bar_that_nothing_was_measured_for_is_not_passed_over():
    bar = verdicts.Bar("decode", "esa", 65536, "over_stock", 0.05, dtype="fp32")
    assert [v["verdict"] for v in verdicts.judge([bar], [row(over_stock="0.01")])] == ["not measured"]
    assert [v["verdict"] for v in verdicts.judge([bar], [row(dtype="fp32", over_stock="")])] == ["not measured"]


@pytest.mark.parametrize("bars", ["cpu", "gpu"])
def test_every_bar_is_about_something_that_is_measured(bars):
    cases = suite.plan() if bars == "cpu" else gpu.layer_cases()
    for bar in verdicts.CPU_BARS if bars == "cpu" else verdicts.GPU_BARS:
        about = [c for c in cases if (c.phase, c.length) == (bar.phase, bar.length) and bar.method in c.methods]
        over = bar.column.removeprefix("over_")
        assert any(over in c.methods or over == "floor" or (over == "short" and c.against_short) for c in about), bar


# The report


def test_the_report_is_made_of_the_files(tmp_path):
    rows = [row(length=n, seconds=str(n / 1e5), method=m) for m in ("full", "esa") for n in (4096, 65536)]
    rows += [row(phase="prefill", dtype="fp32", heads=8, length=4096, method="flash", over_stock="0.9")]
    rows += [row(phase="decode", heads=8, length=4096, method="full", seconds="7")]  # another shape, with fewer lengths
    suite.write(tmp_path, rows, verdicts.CPU_BARS, 2)
    assert report.main(["--folder", str(tmp_path)]) == 0
    text = (tmp_path / "speed.md").read_text()
    assert text.count("\n| decode | bf16 |") == 5 + 2 and "| prefill | fp32 | 8 |" in text
    assert text.count("not measured") == len(verdicts.CPU_BARS) and version("torch") in text
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in ("prefill", "decode"))
    found = report.points(common.load(tmp_path / "cases.csv"), "decode", "bf16")
    assert found["full"] == {4096: 0.04096, 65536: 0.65536} and list(found) == ["full", "esa"]


def test_a_report_of_nothing_says_what_to_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        report.main(["--folder", str(tmp_path)])
    assert "has no cases, growth, bars; run benchmarks/suite.py first" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no row of a prefill in bf16"):
        report.points([row()], "prefill", "bf16")


def test_the_bars_go_between_the_marks_of_a_page(tmp_path):
    suite.write(tmp_path, [row(over_stock="0.01")], verdicts.CPU_BARS, 1)
    cases, bars = (common.load(tmp_path / f"{name}.csv") for name in ("cases", "bars"))
    first, last = report.MARKS["speed"]
    text = f"before\n{first}\n| old |\n{last}\nafter\n"
    made = report.into_page(text, cases, bars)
    assert made.startswith(f"before\n{first}\n| at most |") and made.endswith(f"\n{last}\nafter\n")
    assert "| old |" not in made and made.count("| met |") == 1 and "not measured" not in made
    assert "one thread, its CPU time" in made and report.into_page(made, cases, bars) == made
    with pytest.raises(ValueError, match="put them back"):
        report.into_page("no marks", cases, bars)


def test_the_documentation_has_the_bars_of_the_results():
    cases, bars = (common.load(report.FOLDER / f"{name}.csv") for name in ("cases", "bars"))
    text = report.PAGE.read_text()
    assert report.into_page(text, cases, bars) == text and "| missed |" in text
