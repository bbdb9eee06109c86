"""A model split over two processes by transformers' ``tp_plan="auto"``: the same tokens as in one process."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.bundled import load_bundled
from support import parallel_run
from support.hf_models import _COMMON, build, make

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package here"),
]
NEAR = 1e-3  # of logits of size 10: sums in another order are off by a few 1e-5


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found; they start once for all tests."""
    folder = tmp_path_factory.mktemp("parallel")
    for name in parallel_run.FAMILIES:
        make(name).save_pretrained(folder / name)
    build("llama", {**_COMMON, "num_key_value_heads": 1}).save_pretrained(folder / "one-key-head")
    return parallel_run.answers(folder)


@pytest.fixture(scope="module")
def model():
    return load_bundled()[0]


@pytest.mark.parametrize("name", parallel_run.CASES)
def test_the_same_tokens_as_in_one_process(ranks, model, name):
    expected = parallel_run.of_case(model, parallel_run.CASES[name])
    for found in ranks:
        assert found["cases"][name]["tokens"] == expected["tokens"]
        assert (found["cases"][name]["logits"] - expected["logits"]).abs().max() < NEAR


@pytest.mark.parametrize("method", parallel_run.OF_A_FAMILY)
@pytest.mark.parametrize("name", parallel_run.FAMILIES)
def test_families(ranks, name, method):
    expected = parallel_run.of_family(make(name), parallel_run.OF_A_FAMILY[method])
    for found in ranks:
        assert (found["families"][name][method] - expected).abs().max() < NEAR


def test_the_report_is_of_a_share_of_the_heads(ranks, model):
    whole = longspan.inspect(model, "esa", calibration=parallel_run.CALIBRATION)
    assert whole.ranks is None
    for rank, found in enumerate(ranks):
        report = found["report"]
        assert report["ranks"] == [rank, parallel_run.PROCESSES]
        assert report["bytes"] * parallel_run.PROCESSES == whole.kv_bytes_per_token
        assert report["heads_hold"] == whole.heads_hold
        assert f"those of rank {rank}, one of 2 equal shares" in report["text"]
        assert "summed over ranks" in report["text"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("read", "a document holds the keys and values of all heads"),
        ("record", "a recording is of all heads"),
        ("calibrate", "make it in one process"),
        ("diagnose", "load it without tp_plan"),
        ("graphed", "split over 2 processes, which exchange tensors within a step"),
        ("one key head", "k_proj: 1 heads are split over 2 processes"),
        ("pipeline", "pipeline parallelism"),
    ],
)
def test_what_cannot_be_is_refused_by_name(ranks, what, words):
    for found in ranks:
        message = found["refused"][what]
        assert words in message and "\n" not in message
