"""lm-evaluation-harness asks the server, and finds what `longspan eval` finds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install 'longspan[lm-eval]')")

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from longspan.bundled import FOLDER, load_bundled
from longspan_eval.lm_eval_harness.tasks import SYNTHETIC, write_tasks
from longspan_eval.session import Session
from longspan_eval.spec import parse_spec
from longspan_eval.studies.eval import Evaluation
from support.serving import Served

METHOD = "longheads:score=bounds"
LENGTHS = [700, 1024]


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.long
def test_local_completions(start, no_hub, tmp_path, monkeypatch):
    served: Served = start()
    names = ["passkey", "passkey-prose"]
    asked = {"max_seq_lengths": LENGTHS, "samples": 2, "seed": 4, "tokenizer": "bundled"}
    write_tasks(tmp_path)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False, metadata=asked)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    arguments = {
        "model": "tiny", "base_url": f"{served.url}/v1/completions", "tokenizer_backend": "huggingface",
        "tokenizer": str(FOLDER), "max_length": 4096, "num_concurrent": 1, "max_retries": 1,
    }  # fmt: skip
    found = simple_evaluate(
        "local-completions", arguments, [f"longspan_{name}" for name in names], task_manager=manager
    )
    plain, tokenizer = load_bundled()
    tasks = tuple(SYNTHETIC[f"longspan_{name}"] for name in names)
    session = Session(plain, tokenizer)
    compared = 0
    for cell in Evaluation(tasks, (parse_spec(METHOD),), tuple(LENGTHS), samples=2, seed=4).cells():
        if cell.row != METHOD:
            continue
        samples, length = [session.measure(one) for one in cell.measures], cell.measures[0].length
        mean = sum(sample.correct for sample in samples) / len(samples)
        assert found["results"][f"longspan_{cell.table}"][f"{length},none"] == pytest.approx(mean)
        compared += 1
    assert compared == len(names) * len(LENGTHS), json.dumps(found["results"])
