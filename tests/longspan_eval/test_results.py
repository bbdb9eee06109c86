"""Cells, intervals and the JSON that holds them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from longspan_eval.results import Sample, cells, weights_hash, wilson, write


def sample(method="dca", length=512, correct=1.0, loss=2.0, error=None, depth=0.5, seed=0):
    return Sample(method, length, seed, depth, "12345", "12345", correct, loss, 10, 0.5, error)


def test_wilson_is_the_published_interval():
    # Brown, Cai and DasGupta (2001) state the form; these are its values at 95%.
    assert wilson(5, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)
    assert wilson(0, 5) == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_cell_holds_counts_rate_and_perplexity():
    (one,) = cells([sample(), sample(correct=0.0, loss=4.0)]).values()
    assert (one.n, one.found, one.rate) == (2, 1, 0.5)
    assert one.perplexity == pytest.approx(math.exp(3.0))
    assert one.seconds == 1.0 and one.interval == wilson(1, 2)


def test_one_failure_makes_its_cell_an_error_and_no_other():
    made = cells([sample(), sample(error="out of memory"), sample(length=1024)])
    assert made["dca", 512].error == "out of memory" and made["dca", 512].n == 0
    assert made["dca", 1024].error is None


def test_json_is_strict_and_complete(tmp_path):
    write(tmp_path / "r.json", {"seed": 7}, [sample(), sample(method="stock", error="out of memory")])
    body = json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert body["seed"] == 7
    assert {"python", "torch", "transformers", "longspan", "threads"} <= set(body["environment"])
    assert [c["method"] for c in body["cells"]] == ["dca", "stock"] and len(body["samples"]) == 2
    assert body["cells"][1]["rate"] is None and body["cells"][0]["interval"] == list(wilson(1, 1))


def test_the_hash_follows_the_weights():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(torch.bfloat16)
    before = weights_hash(model)
    assert before == weights_hash(model) and len(before) == 64
    with torch.no_grad():
        model.bias[0] += 1
    assert weights_hash(model) != before
