"""The training script runs through all its phases and exports a model that loads."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

TRAINING = Path(__file__).parents[2] / "training"

# Every phase as it is, but for a few steps only; one evaluation at the end of each.
SHORT = """
import sys
from dataclasses import replace
import train
train.PHASES = [replace(p, steps=2, warmup=min(p.warmup, 1), decay=min(p.decay, 1)) for p in train.PHASES]
train.main()
"""


@pytest.mark.long
def test_every_phase_runs_and_the_result_loads(tmp_path):
    command = [sys.executable, "-c", SHORT, "--out", str(tmp_path)]
    environment = {"PYTHONPATH": str(TRAINING), "OMP_NUM_THREADS": "1", "PATH": ""}
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    log = (tmp_path / "train.log").read_text()
    assert all(f"name='{name}'" in log for name in ("copy-64", "keys-160", "episodes-160", "keys-512", "final-512"))
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "is finished" in again.stdout
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.max_position_embeddings == 512
    assert tokenizer.decode(tokenizer("The pass key is 12345.", add_special_tokens=False).input_ids).endswith("12345.")
