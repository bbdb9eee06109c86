"""lm-eval's ``vllm`` backend with longspan finds what ``longspan eval`` finds on transformers."""

from __future__ import annotations

import pytest

from longspan.bundled import load_bundled
from longspan_eval.lm_eval_harness.tasks import SYNTHETIC
from longspan_eval.session import Session
from longspan_eval.spec import parse_spec
from longspan_eval.studies.eval import Evaluation
from support.vllm_harness import results

pytest.importorskip("vllm.v1")
pytest.importorskip("lm_eval")
pytestmark = pytest.mark.long

METHOD = "longheads:score=bounds,remap=dca"
LENGTHS = [700, 1536]
TASK = "longspan_passkey"
SAMPLES = 3


def test_a_task_of_longspan(bundled, tmp_path):
    arguments = {
        "pretrained": str(bundled), "dtype": "float32", "max_model_len": 2048, "block_size": 32, "enforce_eager": True,
        "additional_config": {"longspan": METHOD},
    }  # fmt: skip
    asked = {"max_seq_lengths": LENGTHS, "samples": SAMPLES, "seed": 4, "tokenizer": str(bundled)}
    found = results(tmp_path, arguments, [TASK], asked)
    assert "error" not in found, found["error"]
    session = Session(*load_bundled())
    cells = Evaluation((SYNTHETIC[TASK],), (parse_spec(METHOD),), tuple(LENGTHS), samples=SAMPLES, seed=4).cells()
    compared = {
        cell.measures[0].length: sum(session.measure(one).correct for one in cell.measures) / len(cell.measures)
        for cell in cells
        if cell.row == METHOD
    }
    assert list(compared) == LENGTHS
    assert {length: found[TASK][f"{length},none"] for length in LENGTHS} == pytest.approx(compared)
