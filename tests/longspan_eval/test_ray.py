"""On a Ray cluster: the same samples as in one process, whatever dies in the middle."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from longspan.cli import main
from longspan.errors import LongspanError
from longspan_eval.ray_workers import LIVES, Cluster
from longspan_eval.session import bundled
from longspan_eval.tasks import TASKS
from support.studies import plan_of, study

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.long  # a cluster takes half a minute to come up and load its models

PASSKEY = TASKS["passkey"]
STUDY = study((PASSKEY,), ("dca", "yarn", "dca:window=600"), (200, 700), samples=3)


@pytest.fixture(scope="module")
def cluster():
    """Two processors, so two workers for the four rows."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with Cluster("") as made:
        yield made
    assert ray.is_initialized(), "it was not the cluster's own, so it is left running"
    ray.shutdown()


def parts(made=STUDY):
    return plan_of(made).left({}, rank=made.rank(longest_first=True))


def reader_pids(title=b"ray::_Reader"):
    """The processes of the cluster's actors, started by this one, that call themselves so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not (folder / "cmdline").read_bytes().startswith(title):
                continue
            parent = int(folder.name)
            while parent not in (0, 1, os.getpid()):
                parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid():
            found.append(int(folder.name))
    return found


def same(sample):
    """A sample as it is wherever it was read."""
    sample = replace(sample, seconds=0.0, threads=0)
    return replace(sample, loss=0.0) if math.isnan(sample.loss) else sample


@pytest.fixture(scope="module")
def serial():
    session = bundled()
    return {one.key: same(session.measure(one.measure)) for part in parts() for one in part}


def test_a_worker_that_is_killed_changes_nothing(cluster, serial):
    assert cluster.room == 2
    killed, answers, order = [], {}, []
    for request, sample in cluster.run(parts(), load=bundled):
        assert request.key not in answers
        answers[request.key] = same(sample)
        order.append(request.measure)
        looks = 50 if len(order) >= 3 and not killed else 0  # a reader calls itself so for milliseconds at a time
        for _ in range(looks):
            if killed := reader_pids(b"ray::_Reader.measure"):  # not one that loads
                os.kill(killed[0], signal.SIGKILL)
                break
    assert killed and not set(killed[:1]) & set(reader_pids())
    good = {key for key, sample in serial.items() if sample.error is None}
    assert len(good) == 18 and {key for key in answers if answers[key].error is None} == good
    assert all(answers[key] == serial[key] for key in answers)
    bad = [sample for sample in answers.values() if sample.method == "dca:window=600"]
    assert 2 <= len(bad) <= 4 and all("window" in sample.error for sample in bad), "after the first, no more of a cell"
    assert order[0].length == 700, "longest first"


def dies(tokenizer, *, length, seed, depth=None, record=None):
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return PASSKEY.build(tokenizer, length=length, seed=seed, depth=depth)


def test_a_prompt_that_kills_whoever_reads_it_is_an_error(cluster):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = study((replace(PASSKEY, build=dies),), ("stock",), (200, 300), samples=3)
    answers = {(one.measure.length, one.measure.seed): s.error for one, s in cluster.run(parts(made), load=bundled)}
    words = "the worker died (killed, perhaps for lack of memory)"
    assert LIVES == 2 and answers[300, 1] == answers[200, 1] == words
    assert {error for (_, seed), error in answers.items() if seed != 1} == {None}


def test_what_is_not_worth_its_time_is_not_asked(cluster):
    def skip(request):
        return "skipped: too long" if request.measure.length == 700 else None

    made = study((PASSKEY,), ("stock",), (200, 700), samples=2)
    answers = [(one.measure.length, s.error) for one, s in cluster.run(parts(made), load=bundled, skip=skip)]
    assert sorted(answers, key=lambda pair: -pair[0]) == [(700, "skipped: too long"), (200, None), (200, None)]


@pytest.mark.parametrize(
    ("load", "words"),
    [(partial(bundled, device="moon"), "cannot load the model: RuntimeError"), (partial(os._exit, 3), "ended while")],
)
def test_a_model_that_does_not_load_is_an_error(cluster, load, words):
    with pytest.raises(LongspanError, match=words):
        list(cluster.run(parts(), load=load))
    assert not [actor for actor in reader_pids() if actor_alive(actor)]


def actor_alive(pid):
    """Whether Ray, which kills in its own time, has let a process be for more than a few seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if pid not in reader_pids():
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("needs", [{"threads": 3}, {"gpus": 1}])
def test_a_cluster_without_room_is_an_error_and_not_a_wait(cluster, needs):
    with pytest.raises(LongspanError, match="2 processors and 0 GPUs; a worker needs"), Cluster("", **needs):
        pass
    assert ray.is_initialized()


def test_the_command_gives_the_same_results_as_without(cluster, tmp_path):
    options = ["--methods", "yarn", "--lengths", "300,600", "--samples", "2", "--device", "cpu", "--threads", "1"]
    args = ["eval", "passkey", "--model", "bundled", *options, "--out"]
    # In a process of its own: one that has joined a cluster and then starts processes does not get out of it again.
    code = f"from longspan.cli import main; main({[*args, str(tmp_path / 'serial')]!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
    with pytest.raises(SystemExit) as stopped:
        main([*args, str(tmp_path / "ray"), "--ray", "local"])
    assert not stopped.value.code
    found = []
    for name in ("serial", "ray"):
        body = json.loads((tmp_path / name / "results.json").read_text())
        found.append(body | {"cells": [{k: v for k, v in cell.items() if k != "seconds"} for cell in body["cells"]]})
    assert found[0] == found[1] and all(cell["n"] == 2 for cell in found[0]["cells"])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "ray://no.such.host.invalid:10001"])
def test_an_address_where_nothing_listens_is_one_line(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(LongspanError, match=f"--ray {address}: cannot reach the cluster"), Cluster(address):
        pass
