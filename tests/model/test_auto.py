"""``method="auto"`` chooses by length, window, memory and calibration, says why, and attaches what it chose."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.hf.attach import examine
from longspan.methods import METHODS
from longspan.model.auto import CROSSOVER, choose, kv_bytes_per_token
from support.hf_models import WINDOW, make

FACTS = {
    "kv_bytes_per_token": lambda method: 500 * (1 + method.stored_rotations(512)),
    "free": 10**9,
    "calibrated": False,
    "on_gpu": False,
}


@pytest.mark.parametrize(
    ("length", "facts", "name", "tier", "words"),
    [
        (512, {}, "full", "device", "512 tokens fit the window of 512"),
        (513, {}, "dca", "device", "1.0 windows"),
        (512 * CROSSOVER, {}, "dca", "device", "16.0 windows"),
        (512 * CROSSOVER + 1, {}, "esa", "device", "selection is faster; of these it finds most in real texts"),
        (512 * CROSSOVER + 1, {"calibrated": True}, "esa", "device", "calibrated"),
        (None, {}, "esa", "device", "length is not known"),
        (None, {"calibrated": True}, "esa", "device", "length is not known"),
        (None, {"asks_dca": True}, "dca", "device", "the model's config asks for dca"),
        (513, {"free": 600_000}, "longheads", "disk", "tier 'disk'"),
        (513, {"free": 641_000}, "longheads", "disk", "under dca, of"),
        (513, {"free": 642_000}, "dca", "device", "every key is kept"),
        (10**6, {"free": 1_249_000_000}, "longheads", "disk", "its scores read few bytes of each key"),
        (10**6, {"free": 1_251_000_000}, "longheads", "device", "under esa, of 1.2 GiB free, and less under longheads"),
        (10**6, {"free": 1_876_000_000}, "esa", "device", "selection is faster"),
        (10**6, {"free": 1_251_000_000, "calibrated": True}, "esa", "disk", "under esa, of"),
        (513, {"free": 600_000, "on_gpu": True, "calibrated": True}, "esa", "host", "tier 'host'"),
        (512, {"free": 1}, "full", "device", "fit the window"),
        (10**6, {"free": None}, "esa", "device", "1953.1 windows"),
    ],
)
def test_choice(length, facts, name, tier, words):
    choice = choose(length, 512, **{**FACTS, **facts})
    assert (choice.method.name, choice.kv_tier) == (name, tier)
    assert words in choice.reason


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("name", METHODS)
def test_bytes_that_a_choice_counts_are_those_of_the_report(family, name):
    report, _, layers = examine(make(family), name)
    assert kv_bytes_per_token(report.method, report.window, layers) == report.kv_bytes_per_token > 0


@torch.no_grad()
def test_auto_attaches_what_it_chose_and_says_so(capsys):
    model = make("llama")
    window = model.config.max_position_embeddings
    ids = torch.randint(0, 50, (1, window // 2))
    stock = model(ids).logits
    assert longspan.inspect(model).method == longspan.inspect(model, "auto").method, "the default"
    for length, name in ((window, "full"), (2 * window, "dca"), (20 * window, "esa"), (None, "esa")):
        report = longspan.extend(model, "auto", length=length)
        assert report.method.name == name and report.reason
        said = capsys.readouterr().err
        assert said == f"longspan auto: {name}: {report.reason}\n"
        assert report.reason in str(report).replace("\n", " ") or name in str(report)
        assert report.to_dict()["reason"] == report.reason
        assert (model(ids).logits - stock).abs().max() < 1e-4
    longspan.restore(model)


def test_a_named_method_has_no_reason():
    model = make("llama")
    assert longspan.extend(model, "dca").reason is None


def test_length_tells_methods_how_far_to_reach():
    model = make("llama")
    window = model.config.max_position_embeddings
    assert longspan.extend(model, "yarn", length=6 * window).method.angles.factor == 6


@pytest.mark.parametrize("method", [longspan.YaRN(factor=2), longspan.SelfExtend(group=2), longspan.String()])
def test_a_length_beyond_what_a_parameter_reaches_is_noted(method):
    model = make("llama")
    most = longspan.inspect(model, method).method.longest(WINDOW)
    for length, noted in ((most, False), (most + 1, True)):
        warnings = longspan.inspect(model, method, length=length).warnings
        assert any(f"length {length} is more than the {most} tokens" in one for one in warnings) == noted


@pytest.mark.parametrize("length", [0, -5, 1.5, "x"])
def test_lengths_that_are_none(length):
    with pytest.raises(longspan.LongspanError, match="length must be an? (integer )?number of tokens"):
        longspan.extend(make("llama"), "auto", length=length)


def test_auto_takes_no_angles():
    with pytest.raises(longspan.LongspanError, match="auto.*does not accept angles"):
        longspan.extend(make("llama"), "auto", length=1000, angles=longspan.YaRN())


def test_auto_may_be_offered_a_folder_that_it_does_not_need(tmp_path):
    report = longspan.extend(make("llama"), "auto", length=100, kv_dir=tmp_path)
    assert report.kv_tier == "device" and report.kv_dir is None
