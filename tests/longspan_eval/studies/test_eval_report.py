"""What a reader gets: a table in which no cell is blank, strict JSON, pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from longspan_eval.figure import wilson
from longspan_eval.report import charts
from longspan_eval.report.depths import BINS, by_depth
from longspan_eval.studies.eval_report import short_length
from support.studies import DEEP, MADE, READ, answer, plan_of, report_of, requests, study

STUDY = study((MADE, DEEP), ("dca:chunk_size=100", "yarn"), (512, 1000, 2048), depths=3, samples=2)


@pytest.fixture
def report(tmp_path):
    return report_of(STUDY, tmp_path, "longspan eval made deep")


@pytest.fixture
def samples(report):
    """One cell of every kind: whole, unfinished, not begun, out of memory, skipped, broken."""
    made, deep = (requests(report.plan, table) for table in ("made", "deep"))
    every = [one for table in (made, deep) for some in table.values() for one in some]
    samples = {one.key: answer(one.measure) for one in every}
    for one in [*deep["yarn", "2,048"][1:], *deep["stock", "2,048"]]:
        del samples[one.key]
    for (one, *_), error in (
        (made["yarn", "512"], "out of memory"),
        (made["yarn", "1,000"], "skipped: a prompt takes about 2.0 hours"),
        (deep["dca:chunk_size=100", "512"], "DCA: a rule is broken"),
    ):
        samples[one.key] = one.measure.failed(error)
    return samples


def test_no_cell_of_a_table_is_blank(report, samples):
    report.write(samples)
    text = (report.out / "summary.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 6 and all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
    by = {(n // 3, row[0].strip(" `")): [cell.strip() for cell in row[1:]] for n, row in enumerate(rows)}
    assert by[0, "yarn"][:2] == ["out of memory", "skipped"] and by[1, "dca:chunk_size=100"][0] == "error"
    assert by[1, "stock"][2] == "·" and by[1, "yarn"][2].endswith("n=1 …") and by[1, "yarn"][1].endswith("n=6")
    for words in (
        "Window 512 tokens, 1,000 parameters in float32, weights `aaaaaaaaaaaa`",
        "| | 512 | 1,000 | 2,048 |",
        "- deep, `dca:chunk_size=100` at 512 tokens: DCA: a rule is broken",
        "- made, `yarn` at 1,000 tokens: skipped: a prompt takes about 2.0 hours",
        "- 2 of 18 cells are unfinished",
        "- No depth can be asked for in made.",
        "`longspan eval made deep`",
        "torch",
    ):
        assert words in text


def test_the_json_says_what_was_measured_and_how(report, samples):
    report.write(samples)
    body = json.loads((report.out / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert body["model"]["sha256"] == "a" * 64 and body["model"]["tokenizer_sha256"] == "b" * 64
    assert {"torch", "transformers", "longspan", "python"} <= body["environment"].keys()
    assert (body["environment"]["threads"], body["environment"]["device"], body["first_seed"]) == (2, "cpu", 0)
    assert body["tasks"]["deep"]["depths"] == [0, 0.5, 1] and body["tasks"]["made"]["depths"] is None
    assert body["tasks"]["made"]["version"] == 1 and body["tasks"]["made"]["data"] is None
    assert body["rows"]["dca:chunk_size=100"]["1000"]["chunk_size"] == 100 and body["rows"]["stock"]["512"] == {}
    assert len(body["cells"]) == 18
    cells = {(c["task"], c["row"], c["length"]): c for c in body["cells"]}
    assert cells["made", "yarn", 512]["error"] == "out of memory" and cells["made", "yarn", 512]["score"] is None
    one = cells["deep", "yarn", 512]
    assert (one["n"], one["planned"], len(one["depths"]), one["multiple"]) == (6, 6, 3, 1.0) and len(
        one["interval"]
    ) == 2


def test_seconds_are_those_of_this_runs_threads_and_storage(report):
    def body(samples):
        report.write(samples)
        found = json.loads((report.out / "results.json").read_text())
        cells = {(cell["task"], cell["row"], cell["length"]): cell for cell in found["cells"]}
        return cells["deep", "yarn", 512], found["environment"], (report.out / "summary.md").read_text()

    asked = requests(report.plan, "deep")["yarn", "512"]
    own = {one.key: replace(answer(one.measure, 3.0), kv_tier="device", threads=2) for one in asked}
    cell, environment, text = body(own)
    assert (cell["n"], cell["timed"], cell["seconds"]) == (6, 6, 3.0) and "Seconds" not in text
    assert (environment["kv_tier"], environment["threads"]) == ("device", 2)
    first, second, third, *_ = own
    others = {first: {"kv_tier": "disk"}, second: {"threads": 1}, third: {"kv_tier": "", "threads": 0}}
    mixed = own | {key: replace(own[key], seconds=90.0, **other) for key, other in others.items()}
    cell, _, text = body(mixed)
    assert (cell["n"], cell["timed"], cell["seconds"]) == (6, 3, 3.0), "of the three that are of this run"
    assert "- Seconds in `results.json` leave out 3 of 6 prompts" in text
    assert "`--kv-tier device` and threads per process: 2" in text
    cell, _, _ = body({key: mixed[key] for key in others})
    assert (cell["n"], cell["timed"], cell["seconds"]) == (3, 0, None)


def test_a_report_is_replaced_whole(report, samples, monkeypatch):
    report.write(samples)
    before = (report.out / "results.json").read_bytes()

    def dies(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("longspan.files.os.replace", dies)
        with pytest.raises(KeyboardInterrupt):
            report.write({})
    assert (report.out / "results.json").read_bytes() == before
    assert sorted(path.name for path in report.out.iterdir()) == ["results.json", "summary.md"]


def test_records_are_counted(tmp_path):
    (tmp_path / "read.jsonl").write_text('{"answer": 1}\n{"answer": 2}\n')
    report_of(study((READ,), data_dir=tmp_path), tmp_path).write({})
    task = json.loads((tmp_path / "results.json").read_text())["tasks"]["read"]
    assert (task["data"], task["records"]) == ("read.jsonl", 2)


def test_pictures(report, samples):
    drawn = report.draw(samples)
    assert [path.name for path in drawn] == ["scores.png", "heatmap-deep.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000 for path in drawn)


def test_every_tile_without_a_score_says_why(report, samples, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "tiles", lambda panels, *args, **more: drawn.append(panels))
    report.draw(samples)
    overview = [text for panel in drawn[0] for line in panel.texts for text in line]
    assert {"oom", "skip", "error", "·"} <= set(overview) and sum(text.isdigit() for text in overview) == 14
    stock, dca, yarn = drawn[1]
    assert (stock.across, dca.across, yarn.across) == ({2: "·"}, {0: "error"}, {})
    assert [line[2] for line in yarn.texts] == ["", "·", "·"], "one depth of an unfinished cell has a prompt"


def parts(made, scores, depths=None):
    """The first cell by depth, of samples with these scores."""
    (cell, *_), plan = made.cells(), plan_of(made)
    prompts = cell.measures[: len(scores)]
    samples = [replace(answer(one), correct=score) for one, score in zip(prompts, scores, strict=True)]
    if depths is not None:
        samples = [replace(one, depth=depth) for one, depth in zip(samples, depths, strict=True)]
    figure = plan.cells[0].figure_of(samples, planned=len(cell.measures))
    return figure, by_depth(cell, figure, samples)


def test_by_depth_that_was_given():
    _, found = parts(study((DEEP,), depths=3, samples=2), [1, 0, 0.5, 1, 0, 1])
    assert [(low, high, one.n, one.value) for low, high, one in found] == [
        (0, 0, 2, 1),
        (0.5, 0.5, 2, 0),
        (1, 1, 2, 0.75),
    ]
    assert found[0][2].interval == wilson(2, 2)
    _, early = parts(study((DEEP,), depths=3, samples=2), [1])
    assert [one.n for _, _, one in early] == [1, 0, 0]
    assert parts(study((MADE,)), [1])[1] == []


def test_depths_left_to_the_seeds_are_told_apart_in_parts():
    where = [0.0, 0.19, 0.2, 0.5, 0.8, 1.0, 0.999]
    figure, found = parts(study((DEEP,), samples=7), where, where)
    assert [one.n for _, _, one in found] == [2, 1, 1, 0, 3] and len(found) == BINS
    assert sum(one.n for _, _, one in found) == figure.n


@pytest.mark.parametrize(("length", "text"), [(16384, "16k"), (1000, "1000"), (512, "512"), (1024, "1k")])
def test_short_lengths(length, text):
    assert short_length(length) == text
