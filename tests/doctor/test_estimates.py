"""What is committed of the doctor's estimates: the table in the documentation is that of the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import common  # noqa: E402
import doctor  # noqa: E402
from longspan.doctor.measuring import Point, Run, ladder  # noqa: E402


def test_the_table_is_that_of_the_file():
    rows = json.loads(doctor.RESULTS.read_text(encoding="utf-8"))["rows"]
    text = doctor.DOCUMENT.read_text(encoding="utf-8")
    assert common.between(text, doctor.MARKS, doctor.table(rows)) == text and len(rows) > 3


def test_no_estimate_is_of_a_length_that_was_measured():
    found = json.loads(doctor.RESULTS.read_text(encoding="utf-8"))
    for row in found["rows"]:
        assert row["fitted_up_to"] <= 0.6 * row["tokens"]
        assert row["prefill_error"] == row["prefill_estimate"] / row["prefill_seconds"] - 1
    for kind in ("prefill", "token"):
        errors = [abs(row[f"{kind}_error"]) for row in found["rows"]]
        assert found["within"][kind] == sum(error <= found["bar"] for error in errors)


def test_a_run_is_cut_to_what_another_length_would_have_had():
    points = tuple(Point(a, b, 1.0) for a, b in ladder(8192))
    run = Run("cpu", points, points, 1, 1.0)
    assert doctor.as_for(run, 4096).length == 2048 and doctor.as_for(run, 10**6).length == 8192


def test_a_method_that_is_measured_again_leaves_the_rows_of_others(tmp_path, monkeypatch):
    before = json.loads(doctor.RESULTS.read_text(encoding="utf-8"))["rows"]
    monkeypatch.setattr(doctor, "RESULTS", tmp_path / "doctor.json")
    monkeypatch.setattr(doctor, "DOCUMENT", tmp_path / "doctor.md")
    doctor.RESULTS.write_text(json.dumps({"rows": before}))
    doctor.DOCUMENT.write_text("\n".join(doctor.MARKS))
    new = [
        {**row, "prefill_seconds": 1.0, "machine": {"device": "another"}} for row in before if row["method"] == "esa"
    ]
    doctor.keep(new)
    after = json.loads(doctor.RESULTS.read_text())
    assert [row["method"] for row in after["rows"]] == [row["method"] for row in before]
    assert [row for row in after["rows"] if row["method"] == "esa"] == new
    assert [row for row in after["rows"] if row["method"] != "esa"] == [x for x in before if x["method"] != "esa"]
    assert all({"machine", "seconds", "rounds", "prefill_chunk"} <= row.keys() for row in before)
