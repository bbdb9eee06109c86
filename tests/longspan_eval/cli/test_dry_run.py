"""``longspan eval --dry-run``: what is left, counted; and seconds that follow from what was measured."""

from __future__ import annotations

import json

import pytest

from longspan_eval.journal import read_samples
from longspan_eval.run import in_process

ARGS = ("--methods", "dca,longheads:score=bounds,num_chunks=8", "--lengths", "128,256", "--device", "cpu")


@pytest.fixture
def command(folder, tmp_path):
    return ["eval", "passkey", "--model", str(folder), *ARGS, "--out", str(tmp_path / "out")]


@pytest.fixture
def timed(run, command, monkeypatch):
    """A run of one prompt of each row at 128 tokens: a second for each of them, in the row dca ten.

    After it no model has weights and none runs.
    """

    def measure(self, prompt):
        return prompt.sample(seconds=prompt.length * (10.0 if prompt.spec.label == "dca" else 1.0))

    with monkeypatch.context() as during:
        during.setattr("longspan_eval.session.Session.measure", measure)
        during.setattr("longspan_eval.workers.run", here)
        assert run(*command, "--samples", 1, "--lengths", "128").code == 0
    unloaded(monkeypatch)


def here(parts, *, load, workers, threads, **more):
    return in_process(parts, session=load(), **more)


def unloaded(monkeypatch):
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    monkeypatch.setattr("longspan_eval.session.Session.measure", None)
    monkeypatch.setattr("longspan.hf.extend", None)


def test_what_is_left_is_counted_without_weights_and_nothing_is_written(run, command, tmp_path, monkeypatch):
    unloaded(monkeypatch)
    ran = run(*command, "--samples", 6, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    assert not (tmp_path / "out").exists()
    assert (made["cells"], made["prompts"], made["tokens"]) == (6, 36, 3 * 6 * (128 + 256))
    assert made["done"] == 0 and made["at_once"] == 1 and made["seconds"] is None
    assert made["basis"].startswith("Nothing is measured yet")
    rows = {row["row"]: row for row in made["rows"]}
    assert list(rows) == ["stock", "dca", "longheads:num_chunks=8,score=bounds"]
    assert all((row["cells"], row["prompts"], row["tokens"]) == (2, 12, 6 * 384) for row in rows.values())
    assert "an unknown time" in run(*command, "--samples", 6, "--dry-run").out


def test_the_time_follows_from_what_was_measured(run, command, timed):
    made = json.loads(run(*command, "--samples", 7, "--dry-run", "--json").out)
    rows = {row["row"]: row for row in made["rows"]}
    assert made["done"] == 3 and made["prompts"] == 39
    assert rows["dca"]["seconds"] == pytest.approx(10 * rows["stock"]["seconds"])
    assert rows["stock"]["seconds"] > 6 * 128 + 7 * 256, "full attention takes more than in proportion to the length"
    linear = rows["longheads:num_chunks=8,score=bounds"]["seconds"]
    assert linear == pytest.approx(6 * 128 + 7 * 256), "what chooses takes time in proportion"
    assert made["seconds"] == pytest.approx(sum(row["seconds"] for row in rows.values()))


def test_another_model_of_the_run_has_measured_nothing(run, command, tmp_path, timed):
    results = tmp_path / "out" / "results.json"
    body = json.loads(results.read_text())
    body["model"]["parameters"] += 1
    results.write_text(json.dumps(body))
    made = json.loads(run(*command, "--samples", 7, "--dry-run", "--json").out)
    assert made["done"] == 0 and made["seconds"] is None


def test_workers_share_it(run, command, timed):
    one, two = (json.loads(run(*command, "--samples", 2, "--dry-run", "--json", *more).out)["seconds"]
                for more in ((), ("--workers", 2)))  # fmt: skip
    assert two == pytest.approx(one / 2)


@pytest.mark.long
def test_it_goes_by_what_has_been_measured(run, command, tmp_path):
    assert run(*command, "--samples", 2).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    made = json.loads(run(*command, "--samples", 5, "--dry-run", "--json").out)
    assert made["done"] == 12 and made["prompts"] == 18 and made["cells"] == 6
    assert made["basis"].startswith("Measured: samples of this run (12 prompts)")
    samples = [json.loads(line) for line in before["samples.jsonl"].splitlines()]
    for row in made["rows"]:
        mine = [sample for sample in samples if sample["method"] == row["row"]]
        assert row["seconds"] == pytest.approx(3 * sum(sample["seconds"] for sample in mine) / 2, rel=1e-6)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    done = json.loads(run(*command, "--samples", 2, "--dry-run", "--json").out)
    assert done["prompts"] == done["seconds"] == 0 and done["basis"].startswith("Measured: samples")


def test_a_prompt_that_ended_in_an_error_is_not_answered(run, command, tmp_path, monkeypatch):
    def measure(self, prompt):
        return prompt.failed("out of memory") if prompt.spec.label == "dca" else prompt.sample(seconds=1.0)

    def left(*more):
        return json.loads(run(*command, "--samples", 2, "--dry-run", "--json", *more).out)

    monkeypatch.setattr("longspan_eval.session.Session.measure", measure)
    monkeypatch.setattr("longspan_eval.workers.run", here)
    assert run(*command, "--samples", 2).code == 0
    samples = read_samples(tmp_path / "out" / "samples.jsonl").values()
    assert sum(one.error is None for one in samples) == 8 and len(samples) == 10
    made = left()
    assert (made["done"], made["prompts"]) == (8, 0) and made["basis"].startswith("Measured: samples of this run (8 ")
    again = left("--retry-errors")
    assert (again["done"], again["prompts"]) == (8, 4)


def test_a_run_of_errors_alone_fails(run, command, tmp_path, monkeypatch):
    monkeypatch.setattr("longspan_eval.workers.run", here)
    monkeypatch.setattr("longspan_eval.session.Session.measure", lambda self, prompt: prompt.sample())
    assert run(*command, "--samples", 2, "--seed", 99).code == 0
    before = len(read_samples(tmp_path / "out" / "samples.jsonl"))  # of other prompts, which hide nothing
    monkeypatch.setattr("longspan_eval.session.Session.measure", lambda self, prompt: prompt.failed("out of memory"))
    ran = run(*command, "--samples", 2)
    failed = len(read_samples(tmp_path / "out" / "samples.jsonl")) - before
    assert (
        before
        and ran.code == 1
        and ran.err.splitlines()[-1]
        == (
            f"longspan: error: all {failed} measurements ended in an error, the first: out of memory; "
            "--retry-errors repeats them"
        )
    )
    assert json.loads((tmp_path / "out" / "results.json").read_text())["cells"]


def test_a_cluster_is_not_timed(run, command):
    ran = run(*command, "--dry-run", "--ray", "local")
    assert ran.code == 1 and ran.err.startswith(
        "longspan: error: --dry-run tells the time of processes on this machine"
    )
    assert "leave --ray out" in ran.err and ran.err.count("\n") == 1


def test_cells_over_the_time_limit_are_left_out(run, command, timed):
    made = json.loads(run(*command, "--samples", 2, "--dry-run", "--json", "--max-full-seconds", 200).out)
    rows = {row["row"]: row for row in made["rows"]}
    assert rows["stock"]["cells"] == 1 and rows["dca"]["cells"] == 2


def test_a_page_for_people(run, command, timed):
    ran = run(*command, "--samples", 6, "--dry-run")
    assert ran.code == 0
    assert all(word in ran.out for word in ("stock", "cells", "prompts", "6,528", "all", "1 prompt at a time"))
    assert "hours" in ran.out


def test_stdin_cannot_be_kept(run, folder):
    ran = run("eval", "perplexity", "--model", folder, "--text", "-", "--dry-run")
    assert ran.code == 1 and "--dry-run writes no files" in ran.err
